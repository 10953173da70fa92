// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// reservations hold room for a long-waiting pod group, so that smaller pods do not take all freed
// room indefinitely; see [plugins.Reservations]. Room is held in the same way as for preemptors:
// members of the group are nominated to nodes. A pod of the same or a lower priority is placed on
// such a node only if the nominated members still fit there. The only exception is a pod with an
// activeDeadlineSeconds that ends it early enough; see Reservation.lastEnd.
//
// There is at most one reservation at a time. It ends at its deadline, or earlier if the group is
// placed, preempts, becomes incomplete, is deleted, or fails with an error. Afterwards, no new
// reservation begins for as long as the reservation lasted, and at least for the maximum back-off,
// so that every pod blocked by it is tried. The group itself waits as long as for its first
// reservation.
type reservations struct {
	*common
	nominations *nominations
	podGroups   *podGroups

	held  *Reservation // the current reservation, or nil
	rests time.Time    // earliest start of the next reservation
}

// Reservation is room held for a pod group. It is immutable.
type Reservation struct {
	Group        types.UID // UID of the PodGroup
	Since, Until time.Time
	Nodes        map[types.UID]string // nominated nodes of members, by pod
}

// lastEnd returns the latest allowed end of a pod placed in held room. It precedes the end of the
// reservation, since pods take time to start and to stop.
func (r *Reservation) lastEnd() time.Time { return r.Until.Add(-r.Until.Sub(r.Since) / 10) }

// isDue reports whether to reserve room for a group just found to fit nowhere. The group's wait
// begins with the first attempt in which it fits nowhere.
func (rs *reservations) isDue(g *groups.Group, bounds plugins.Reservations) bool {
	if bounds.For <= 0 {
		return false
	}
	if g.Since.IsZero() {
		g.Since = rs.now
	}
	if rs.held != nil {
		return rs.isFor(g) && rs.now.Before(rs.held.Until)
	}
	return rs.now.Sub(g.Since) >= bounds.After && !rs.now.Before(rs.rests)
}

// holdNodes begins a reservation, or moves the group's current one to other nodes. The end is
// unchanged: moving does not extend a reservation.
func (rs *reservations) holdNodes(g *groups.Group, nodes map[types.UID]string, most time.Duration) {
	r := &Reservation{Group: g.Object.UID, Since: rs.now, Until: rs.now.Add(most), Nodes: nodes}
	if rs.held != nil {
		r.Since, r.Until = rs.held.Since, rs.held.Until
	}
	rs.held = r
}

// endFor ends the reservation if it is for the group. The calling attempt determines the members'
// new nominations.
func (rs *reservations) endFor(g *groups.Group) {
	if !rs.isFor(g) {
		return
	}
	for _, p := range rs.endReservation() {
		rs.nominations.clearNomination(p.UID)
	}
	g.Since = rs.now
}

// endReservation removes the reservation, and returns the pods nominated for it.
func (rs *reservations) endReservation() (nominees []*cluster.Pod) {
	nominees = rs.nominees()
	// The pause is as long as the reservation lasted, and at least the maximum back-off.
	rs.rests = rs.now.Add(max(rs.now.Sub(rs.held.Since), rs.queue.LastBackoff))
	rs.held = nil
	return nominees
}

// nominees returns the pods nominated for the reservation.
func (rs *reservations) nominees() (list []*cluster.Pod) {
	for _, uid := range slices.Sorted(maps.Keys(rs.held.Nodes)) {
		if p := rs.cluster.Nominated(uid); p != nil && p.Nominated == rs.held.Nodes[uid] {
			list = append(list, p)
		}
	}
	return list
}

// nextDue returns the end of the reservation: its deadline, or now if no pod can use the room any
// longer.
func (rs *reservations) nextDue() time.Time {
	if g := rs.groups.ByUID(rs.held.Group); g == nil || rs.podGroups.progress.isIncomplete(g) || !rs.awaited() {
		return rs.now
	}
	return rs.held.Until
}

// lapse ends the reservation when it is due. The pods lose their nominations and are retried.
func (rs *reservations) lapse() {
	if rs.held == nil || rs.now.Before(rs.nextDue()) {
		return
	}
	g := rs.groups.ByUID(rs.held.Group)
	for _, p := range rs.endReservation() {
		rs.nominations.moveOn(p)
	}
	if g != nil {
		g.Since = rs.now
	}
}

// awaited reports whether a pod with a held nomination is still in the queue.
func (rs *reservations) awaited() bool {
	for uid := range rs.held.Nodes {
		if rs.pendingItem(uid) != nil {
			return true
		}
	}
	return false
}

// lets reports whether a pod may take held room, because it ends early enough.
func (rs *reservations) lets(item *queue.Item) bool {
	if rs.held == nil || item.Pod.Spec.ActiveDeadlineSeconds == nil {
		return false
	}
	ends := rs.now.Add(time.Duration(*item.Pod.Spec.ActiveDeadlineSeconds) * time.Second)
	return !ends.After(rs.held.lastEnd())
}

// lift withdraws the nominations of the reservation during a decision; putBack restores them.
func (rs *reservations) lift() (nominees []*cluster.Pod) {
	nominees = rs.nominees()
	for _, p := range nominees {
		rs.cluster.Unnominate(p.UID)
	}
	return nominees
}

// putBack undoes lift. The pods are last among the nominees of their nodes.
func (rs *reservations) putBack(nominees []*cluster.Pod) {
	for _, p := range nominees {
		rs.cluster.Nominate(p, p.Nominated)
	}
}

// isFor reports whether the current reservation is for the group.
func (rs *reservations) isFor(g *groups.Group) bool {
	return rs.held != nil && g.Object != nil && rs.held.Group == g.Object.UID
}

// words returns the text added to a group's message while room is held for the group.
func (rs *reservations) words() string {
	return fmt.Sprintf(" Room is held on %s for %s, for %s in all.",
		countedOn(len(nodesOf(rs.held)), "node"), countedOn(len(rs.held.Nodes), "pod"), rs.held.Until.Sub(rs.held.Since))
}

// nodesOf returns the nodes of a reservation, each once, sorted.
func nodesOf(r *Reservation) []string {
	return slices.Compact(slices.Sorted(maps.Values(r.Nodes)))
}

// heldFrom returns the held room that is closed to a pending pod, or held for it. It returns nil if
// no room is held, or if the pod may use it. The result is for the description of a decision.
func (rs *reservations) heldFrom(item *queue.Item) *decision.Held {
	if rs.held == nil {
		return nil
	}
	g := rs.groups.ByUID(rs.held.Group)
	if g == nil || rs.lets(item) {
		return nil
	}
	for _, p := range rs.nominees() {
		if p.Class.Priority >= item.Class.Priority {
			return &decision.Held{
				Group: decision.Name{Namespace: g.Namespace, Name: g.Name.Name}, Nodes: nodesOf(rs.held),
				Until: metav1.NewTime(rs.held.Until),
			}
		}
	}
	return nil
}

// countedOn formats a number with a noun.
func countedOn(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
