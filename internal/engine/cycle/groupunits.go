// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// couldPreempt reports whether a waiting pod could preempt a pod, with group priorities enabled, as
// far as it depends on the two pods and their groups. gentle: the profile spares the pods of more
// important groups.
func (gs *podGroups) couldPreempt(item *queue.Item, victim *cluster.Pod, gentle bool) bool {
	priority, own := item.Class.Priority, gs.groupOf(item)
	if own != nil && own.Object != nil {
		priority = own.Priority()
	}
	lower := victim.Class.Priority < priority
	if victim.Class.Spec.SchedulingGroup == nil {
		return lower
	}

	switch g := gs.groups.GroupOf(victim.UID); {
	case g == nil: // it was deleted, and how it counted is unknown
		return false
	case g.Object == nil:
		return lower
	case g.Whole():
		return g.Priority() < priority && (lower || own != nil)
	case gentle:
		return lower && g.Priority() < priority
	}
	return lower
}
