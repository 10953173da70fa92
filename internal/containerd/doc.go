// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package containerd starts a private containerd for as long as a real container runtime is needed:
// for tests of real nodes, and for `berth up --agent` unless the user names another runtime. Root,
// state, socket, network and images are below one folder, and are removed with it.
//
// The implementation is in containerd.sh, which users can run themselves (containerd.sh run DIR);
// this package is its Go side. The script ends with the process that started it, even if that
// process is killed. It waits for the end of its standard input, then kills the containers and
// their shims, and removes mounts, network and cgroups. Images are built from the machine's static
// busybox, not pulled.
package containerd
