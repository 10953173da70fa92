// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// proof tracks whether the assumptions behind a plan's first move still hold. While a plan is
// computed, its victim may be deleted, and another pod may take the successor's room.
//
// It errs on the side of replanning: a plan is cheaper than a needless disruption. Changes not
// covered by proof (labels, budgets, other leaving pods) are detected at the eviction or at the
// arrival.
type proof struct {
	cluster *cluster
	// filled is nil until the first plan is requested.
	filled map[string]bool // nodes with pods scheduled since the plan was requested
	busy   bool            // filled is ignored for this plan, because too many earlier plans were outdated
}

// restart discards recorded changes when a plan is requested, because the plan uses the current
// state.
func (p *proof) restart(busy bool) { p.filled, p.busy = map[string]bool{}, busy }

// notice records a node that gets a pod. It must see an object before the cluster does. A node that
// loses a pod only gains room.
func (p *proof) notice(object metav1.Object) {
	pod, ok := object.(*v1.Pod)
	if !ok || pod.Spec.NodeName == "" || p.filled == nil {
		return
	}
	if before := p.cluster.pod(pod.Namespace, pod.Name, pod.UID); before == nil || before.Spec.NodeName == "" {
		p.filled[pod.Spec.NodeName] = true
	}
}

// outdated reports whether a dependency of a move has changed in the meantime. It is checked when
// the plan arrives, again after the journal is written, and before every eviction attempt.
func (p *proof) outdated(m *rebalance.Move) bool {
	victim := p.cluster.pod(m.Namespace, m.Name, m.UID)
	if victim == nil || victim.DeletionTimestamp != nil || victim.Spec.NodeName != m.From {
		return true
	}
	// Removing a terminal pod needs no node.
	if m.To == "" {
		return false
	}
	n := p.cluster.node(m.To)
	return n == nil || n.Spec.Unschedulable || n.DeletionTimestamp != nil || !p.busy && p.disturbed(m)
}

// disturbed reports whether another pod has been scheduled to a candidate node of the successor.
// All equally good nodes count, because the successor may have been meant for any of them.
func (p *proof) disturbed(m *rebalance.Move) bool {
	return p.filled[m.To] || slices.ContainsFunc(m.Or, func(name string) bool { return p.filled[name] })
}
