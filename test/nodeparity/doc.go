// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeparity compares what simulated nodes decide with the kubelet's own code, on random
// pods and nodes: which pods a node admits (pkg/kubelet/lifecycle), and in which order it evicts
// them under pressure, with which message (pkg/kubelet/eviction). No difference is allowed.
package nodeparity
