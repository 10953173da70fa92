// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package plugintest creates the inputs for tests of plugins: nodes with pods, and the state of a
// scheduling cycle. Both are the scheduler's own types, so the tests see the real inputs.
package plugintest

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/scheduler/outoftree"
)

// NodeInfo returns a node with pods, independent of any cluster.
func NodeInfo(node *v1.Node, pods ...*v1.Pod) fwk.NodeInfo {
	return outoftree.NewNodeInfo(node, pods...)
}

// CycleState returns an empty state.
func CycleState() fwk.CycleState { return outoftree.NewState() }
