// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Node taints a new node, in place, to keep pods off it until it has reported ready; Berth's node
// health controller removes the taint. It is kube-apiserver's plugin TaintNodesByCondition.
func Node(node *v1.Node) {
	taint := v1.Taint{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
}

// NoteTaintTimes sets missing timeAdded fields of evicting taints, in place. kubectl does not set
// them, and tolerationSeconds count from that time, even after a restart of the eviction
// controller. A taint already present in old keeps its time, so that a client that replaces the
// list as a whole neither loses nor restarts it. An existing taint without a time stays without
// one: it is older than this write, and the eviction controller has a better record of its age. old
// is nil for a new node.
//
// The managed fields record the time of this write by the API server's clock. now is used only
// without such a record, because the clock of a webhook's node may be wrong.
func NoteTaintTimes(node, old *v1.Node, now time.Time) {
	if at := lastWrite(node); !at.IsZero() && (old == nil || at.After(lastWrite(old))) {
		now = at
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect != v1.TaintEffectNoExecute || taint.TimeAdded != nil {
			continue
		}
		if had := sameOf(taint, old); had != nil {
			taint.TimeAdded = had.TimeAdded
			continue
		}
		taint.TimeAdded = &metav1.Time{Time: now.Truncate(time.Second)}
	}
}

// lastWrite returns the newest time in the managed fields, or zero if they have none.
func lastWrite(node *v1.Node) (at time.Time) {
	for i := range node.ManagedFields {
		if t := node.ManagedFields[i].Time; t != nil && t.After(at) {
			at = t.Time
		}
	}
	return at
}

// sameOf returns the node's taint of the same key, value and effect, or nil.
func sameOf(taint *v1.Taint, node *v1.Node) *v1.Taint {
	if node == nil {
		return nil
	}
	return rules.Find(node.Spec.Taints, func(had *v1.Taint) bool { return had.MatchTaint(taint) && had.Value == taint.Value })
}
