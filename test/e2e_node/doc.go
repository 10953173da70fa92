// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2enode tests real nodes from a user's view: `berth up --agent`, and `berth agent` on
// another cluster, with upstream's kubelet on private containerds. The tests need root, and
// containerd (installed by apt if missing); on a machine that cannot run containers they are
// skipped with the reason.
//
// Upstream tests the kubelet itself, also by its NodeConformance specs on this node (test/specs).
// These tests cover Berth's additions: the kubelet's configuration, start and end, and the handling
// of its node by the rest of Berth.
package e2enode
