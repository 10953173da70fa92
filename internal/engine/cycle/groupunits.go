// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// couldPreempt reports whether a waiting pod could preempt another pod, with group priorities
// enabled. It considers only the two pods and their groups. gentle is set if the profile spares the
// pods of more important groups.
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
	case g == nil: // the group was deleted, so its effect is unknown
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
