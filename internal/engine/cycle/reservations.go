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

// reservations hold room for a long-waiting pod group, so that smaller pods do not forever take
// freed room; see [plugins.Reservations]. Room is held like for preemptors: members of the group
// are nominated to nodes, and a pod of the same or a lower priority is decided onto such a node
// only if it leaves them their room. The one exception is a pod that ends early enough by its
// activeDeadlineSeconds; see Reservation.lastEnd.
//
// There is at most one reservation at a time. It ends when its time is up, or earlier if the group
// is placed, makes room by preemption, is incomplete or deleted, or its attempt ends with an error.
// After that no reservation begins for the duration of this one, and at least for the longest
// back-off, so that every pod kept out gets its turn. The group itself waits as long as for its
// first reservation.
type reservations struct {
	*common
	nominations *nominations
	podGroups   *podGroups

	held  *Reservation // nil if there is none
	rests time.Time    // no reservation begins before
}

// Reservation is room held for a pod group. It is immutable.
type Reservation struct {
	Group        types.UID // of the PodGroup
	Since, Until time.Time
	Nodes        map[types.UID]string // where members are nominated, by pod
}

// lastEnd returns the latest end of a pod let in: some time before the reservation ends, since pods
// take time to start and to stop.
func (r *Reservation) lastEnd() time.Time { return r.Until.Add(-r.Until.Sub(r.Since) / 10) }

// isDue reports whether to reserve room for a group just found to fit nowhere. The group's wait
// begins with its first such attempt.
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

// endReservation forgets the reservation, and returns the pods that still keep the room.
func (rs *reservations) endReservation() (nominees []*cluster.Pod) {
	nominees = rs.nominees()
	// As long as it has kept other pods out, and at least one back-off.
	rs.rests = rs.now.Add(max(rs.now.Sub(rs.held.Since), rs.queue.LastBackoff))
	rs.held = nil
	return nominees
}

// nominees returns the pods that keep the room.
func (rs *reservations) nominees() (list []*cluster.Pod) {
	for _, uid := range slices.Sorted(maps.Keys(rs.held.Nodes)) {
		if p := rs.cluster.Nominated(uid); p != nil && p.Nominated == rs.held.Nodes[uid] {
			list = append(list, p)
		}
	}
	return list
}

// nextDue returns the end of the reservation: its deadline, or now, if no pods able to take the
// room remain.
func (rs *reservations) nextDue() time.Time {
	if g := rs.groups.ByUID(rs.held.Group); g == nil || rs.podGroups.progress.isIncomplete(g) || !rs.awaited() {
		return rs.now
	}
	return rs.held.Until
}

// lapse ends the reservation if it is time. The pods lose their nominations and are retried.
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

// awaited reports whether a pod with held room is still in the queue.
func (rs *reservations) awaited() bool {
	for uid := range rs.held.Nodes {
		if rs.queue.Get(uid) != nil {
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

// lift withdraws the nominations that keep the room for the time of a decision; putBack restores
// them.
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

// words returns the addition to a group's message while room is held for it.
func (rs *reservations) words() string {
	return fmt.Sprintf(" Room is held on %s for %d pods, for %s in all.",
		countedOn(len(nodesOf(rs.held)), "node"), len(rs.held.Nodes), rs.held.Until.Sub(rs.held.Since))
}

// nodesOf returns the nodes of a reservation, each once, sorted.
func nodesOf(r *Reservation) []string {
	return slices.Compact(slices.Sorted(maps.Values(r.Nodes)))
}

// heldFrom returns the held room closed to a pending pod, or held for it; nil without held room, or
// if the pod may take it. It is for the description of a decision.
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

// countedOn puts a noun after its number.
func countedOn(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
