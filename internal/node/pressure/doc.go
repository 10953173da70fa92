// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package pressure decides when a node is short of memory, disk or PIDs, how that is reported, and
// which pod is evicted: from signals and thresholds like the kubelet's (--eviction-hard and so on),
// the usage of each pod, and the time. Conditions, order and messages are the kubelet's; a test in
// test/nodeparity compares them with the kubelet's code.
//
// It is pure, for simulated nodes: a real node's kubelet does this itself.
package pressure
