// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2enode tests real nodes from a user's view: `berth up --agent`, and `berth agent` with
// another cluster. The nodes run upstream's kubelet and separate containerd instances. The tests
// need root, and containerd, which is installed by apt if missing. On a machine that cannot run
// containers, they are skipped with the reason.
//
// The kubelet itself is tested upstream, and by upstream's NodeConformance specs on Berth's node
// (test/specs). This package tests what Berth adds: the configuration, start and end of the
// kubelet, and the handling of its node by Berth's other components.
package e2enode
