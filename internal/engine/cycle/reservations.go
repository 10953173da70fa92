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
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/pacing"
)

// reservations hold room for long-waiting pod groups and trees of groups, so that smaller pods do
// not take all freed room indefinitely; see [plugins.Reservations]. Room is held in the same way as
// for preemptors: members of the group are nominated to nodes. A tree is treated like a group with
// all its pods; both are identified by a UID, see [groups.Set.ByUnitUID]. A pod of the same or a
// lower priority is placed on such a node only if the nominated members still fit there. The only
// exception is a pod with an activeDeadlineSeconds that ends it early enough (backfill); see
// lastEnd.
//
// Several groups may have a reservation, one each; together, they are limited to the configured
// share of the cluster. A reservation ends at its deadline, or earlier if the group is placed,
// preempts, becomes incomplete, is deleted, or fails with an error. Unless the group was placed, no
// new reservation begins for as long as the reservation lasted, and at least for the maximum
// back-off, so that every pod blocked by it is tried. Other reservations continue meanwhile. The
// group itself waits as long as for its first reservation.
type reservations struct {
	*common
	nominations *nominations
	podGroups   *podGroups

	held  []*Reservation // the current reservations, the earliest first
	rests time.Time      // earliest start of the next reservation
	// next is the group that gets the next reservation, because the share left by the others was
	// too small for it; "" for any group.
	next types.UID
	// lives holds the pods with a known end; see knownEnd.
	lives map[types.UID]lifetime
}

// Reservation is room held for a pod group. It is immutable.
type Reservation struct {
	Group        types.UID // UID of the PodGroup, or of the root of the tree
	Since, Until time.Time
	Nodes        map[types.UID]string // nominated nodes of members, by pod
	// Requests are the requests of these members. The devices of a driver count as a resource with
	// the driver's name.
	Requests cluster.Resources `json:",omitzero"`
	// Expected is the time, on the clock of API objects, by which the group is expected to start,
	// because all pods that must end until then have a known end; zero if it is unknown.
	Expected time.Time `json:",omitzero"`
}

// lastEnd returns the latest allowed end of a pod placed in held room. It precedes the expected
// start of the group, or the end of the reservation, since pods take time to start and to stop. A
// pod that starts within a minute does not delay the expected start.
func (rs *reservations) lastEnd(r *Reservation) time.Time {
	if !r.Expected.IsZero() {
		return r.Expected.Add(-startMargin - rs.ahead)
	}
	return r.Until.Add(-r.Until.Sub(r.Since) / 10)
}

// isDue reports whether to reserve room for a group just found to fit nowhere. The group's wait
// begins with the first attempt in which it fits nowhere.
func (rs *reservations) isDue(group types.UID, bounds plugins.Reservations) bool {
	if bounds.For <= 0 {
		return false
	}
	if rs.groups.Since[group].IsZero() {
		rs.groups.Since[group] = rs.now
	}
	if r := rs.heldFor(group); r != nil {
		return rs.now.Before(r.Until)
	}
	return rs.now.Sub(rs.groups.Since[group]) >= bounds.After && !rs.now.Before(rs.rests) && !rs.isPreceded(group)
}

// isPreceded reports whether another group that still waits gets the next reservation.
func (rs *reservations) isPreceded(group types.UID) bool {
	next := rs.groups.ByUnitUID(rs.next)
	return next != nil && rs.next != group && !rs.groups.Since[rs.next].IsZero() && !rs.podGroups.progress.isIncomplete(next)
}

// passTurn ends the turn of a group for the next reservation.
func (rs *reservations) passTurn(group types.UID) {
	if rs.next == group {
		rs.next = ""
	}
}

// hold begins a reservation, or replaces the group's current one.
func (rs *reservations) hold(r Reservation) Reservation {
	if was := rs.heldFor(r.Group); was != nil {
		rs.held[slices.Index(rs.held, was)] = &r
	} else {
		rs.held = append(rs.held, &r)
	}
	return r
}

// endFor ends the group's reservation, if any. The calling attempt determines the members' new
// nominations.
func (rs *reservations) endFor(group types.UID, placed bool) {
	if r := rs.heldFor(group); r != nil {
		for _, p := range rs.endReservation(r, placed) {
			rs.nominations.clearNomination(p.UID())
		}
	}
}

// endReservation removes a reservation; the group's wait begins again. It returns the pods
// nominated for it.
func (rs *reservations) endReservation(r *Reservation, placed bool) (nominees []*cluster.Pod) {
	nominees = rs.nominees(r)
	if !placed {
		rs.rests = pacing.Later(rs.rests, rs.now.Add(max(rs.now.Sub(r.Since), rs.queue.LastBackoff)))
	}
	rs.held = slices.DeleteFunc(rs.held, func(other *Reservation) bool { return other == r })
	if rs.groups.ByUnitUID(r.Group) != nil {
		rs.groups.Since[r.Group] = rs.now
	}
	return nominees
}

// nominees returns the pods nominated for reservations.
func (rs *reservations) nominees(held ...*Reservation) (list []*cluster.Pod) {
	for _, r := range held {
		for _, uid := range slices.Sorted(maps.Keys(r.Nodes)) {
			if p := rs.cluster.Nominated(uid); p != nil && p.Nominated == r.Nodes[uid] {
				list = append(list, p)
			}
		}
	}
	return list
}

// endOf returns the end of a reservation: its deadline, or now if no pod can use the room any
// longer.
func (rs *reservations) endOf(r *Reservation) time.Time {
	if g := rs.groups.ByUnitUID(r.Group); g == nil || rs.podGroups.progress.isIncomplete(g) || !rs.isAwaited(r) {
		return rs.now
	}
	return r.Until
}

// lapse ends the reservations that are due. Their pods lose their nominations and are retried.
func (rs *reservations) lapse() {
	for _, r := range slices.Clone(rs.held) {
		if !rs.now.Before(rs.endOf(r)) {
			for _, p := range rs.endReservation(r, false) {
				rs.nominations.moveOn(p)
			}
		}
	}
}

// isAwaited reports whether a pod nominated for a reservation is still in the queue.
func (rs *reservations) isAwaited(r *Reservation) bool {
	for uid := range r.Nodes {
		if rs.pendingItem(uid) != nil {
			return true
		}
	}
	return false
}

// openTo lists the reservations whose room a pod may take, because it ends early enough.
func (rs *reservations) openTo(item *queue.Item) (open []*Reservation) {
	longest := rs.lives[item.Pod.UID].longest
	for _, r := range rs.held {
		if longest > 0 && !rs.now.Add(longest).After(rs.lastEnd(r)) {
			open = append(open, r)
		}
	}
	return open
}

// lift withdraws the nominations for reservations during a decision; putBack restores them.
func (rs *reservations) lift(held ...*Reservation) (nominees []*cluster.Pod) {
	nominees = rs.nominees(held...)
	for _, p := range nominees {
		rs.cluster.Unnominate(p.UID())
	}
	return nominees
}

// putBack undoes lift. The pods are last among the nominees of their nodes.
func (rs *reservations) putBack(nominees []*cluster.Pod) {
	for _, p := range nominees {
		rs.cluster.Nominate(p, p.Nominated)
	}
}

// heldFor returns the group's reservation, or nil.
func (rs *reservations) heldFor(group types.UID) *Reservation {
	if i := slices.IndexFunc(rs.held, func(r *Reservation) bool { return r.Group == group }); i >= 0 {
		return rs.held[i]
	}
	return nil
}

// words returns the text added to a group's message while room is held for the group or its tree.
func (r *Reservation) words(what string) string {
	if r.Nodes == nil {
		return ""
	}
	text := fmt.Sprintf(" Room is held on %s for %s, for %s in all.",
		countedOn(len(nodesOf(r)), "node"), countedOn(len(r.Nodes), "pod"), r.Until.Sub(r.Since))
	if !r.Expected.IsZero() {
		text += r.Expected.UTC().Format(" The " + what + " is expected to start by 2006-01-02 15:04Z.")
	}
	return text
}

// nodesOf returns the nodes of a reservation, each once, sorted.
func nodesOf(r *Reservation) []string {
	return slices.Compact(slices.Sorted(maps.Values(r.Nodes)))
}

// heldFrom returns the held room that is closed to a pending pod, or held for it: the room of its
// group, or else the earliest of the others. It returns nil if no room is held, or if the pod may
// use all of it. The result is for the description of a decision.
func (rs *reservations) heldFrom(item *queue.Item) (from *decision.Held) {
	open, own := rs.openTo(item), rs.groups.GroupOf(item.Pod.UID)
	for _, r := range rs.held {
		g := rs.groups.ByUnitUID(r.Group)
		if g == nil || from != nil && !g.SharesTree(own) || slices.Contains(open, r) {
			continue
		}
		name, composite := rs.podGroups.entityOf(g.Name)
		if g.SharesTree(own) {
			name, composite = own.Name, false
		}
		if slices.ContainsFunc(rs.nominees(r), func(p *cluster.Pod) bool { return p.Class.Priority >= item.Class.Priority }) {
			from = &decision.Held{
				Group: decision.Name{Namespace: name.Namespace, Name: name.Name}, Nodes: nodesOf(r), Until: metav1.NewTime(r.Until),
				ExpectedStart: metav1.NewTime(r.Expected), Composite: composite,
			}
		}
	}
	return from
}

// countedOn formats a number with a noun.
func countedOn(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
