// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package pressure detects that a node is short of memory, disk or PIDs, computes the reported
// conditions, and selects the pod to evict. Its inputs are signals and thresholds like the
// kubelet's (--eviction-hard and so on), the usage of each pod, and the time. Conditions, order and
// messages are the kubelet's; a test in test/nodeparity compares them with the kubelet's code.
//
// It is pure and used for simulated nodes only: a real node's kubelet evicts pods itself.
package pressure
