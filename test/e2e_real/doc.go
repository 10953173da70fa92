// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2ereal tests Berth on a cluster of real nodes: a control plane with upstream's
// kube-scheduler, and four nodes of upstream's kubelet and kube-proxy, each with its own
// containerd, network, mounts and disk. Nodes are network and mount namespaces of this machine,
// connected by a bridge. `make real-nodes` runs it as root; without the flag -real, every test is
// skipped.
//
// The test runs itself again in network, mount and PID namespaces. When this second process ends,
// the kernel ends all processes of the cluster, and removes their networks, mounts and disks. The
// first process removes the files and the cgroups.
//
// Berth is installed as docs/tasks/install.md describes, from an image in a registry of the
// cluster.
package e2ereal
