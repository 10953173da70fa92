// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeparity compares the decisions of simulated nodes with the decisions of the kubelet's
// own code, for random pods and nodes. It compares the admission of pods (pkg/kubelet/lifecycle),
// and the order and messages of evictions under pressure (pkg/kubelet/eviction). No difference is
// allowed.
package nodeparity
