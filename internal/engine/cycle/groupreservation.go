// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// reserveRoom returns the room held for members of a group that fits nowhere, or nil.
func (a *groupAttempt) reserveRoom() *Reservation {
	bounds := a.profile.Reservations
	if len(a.members) < a.attempt.Need {
		a.reserved.passTurn(a.group)
		return nil
	}
	if !a.reserved.isDue(a.group, bounds) {
		a.reserved.endFor(a.group, false)
		return nil
	}
	next := &Reservation{Since: a.now, Until: a.now.Add(bounds.For)}
	if r := a.reserved.heldFor(a.group); r != nil {
		next.Nodes, next.Until = r.Nodes, r.Until
		if a.countHeld(r) >= a.attempt.Need {
			_, next.Expected = a.planStart(a.nominatedNodes(), r.Until)
			return a.reserved.hold(next, a.group)
		}
	}

	places, start := a.planStart(nil, next.Until)
	others := a.reserved.nominees(slices.DeleteFunc(slices.Clone(a.reserved.held), func(r *Reservation) bool {
		return r == a.reserved.heldFor(a.group)
	})...)
	pods := rules.Mapped(places, func(p gang.Place) *cluster.Pod { return p.Waiting })
	fits := len(places) >= a.attempt.Need && a.shareOf(pods) <= bounds.Share
	a.reserved.passTurn(a.group)
	if fits && a.shareOf(append(pods, others...)) > bounds.Share {
		a.reserved.next = a.group.Object.UID
		fits = false
	}
	if !fits {
		a.reserved.endFor(a.group, false)
		return nil
	}

	next.Nodes, next.Expected = nodesByPod(places), start
	return a.reserved.hold(next, a.group)
}

// planStart looks for nodes, among the given nodes or all, where the group is likely to fit soonest
// as pods end. start is the time, on the clock of API objects, by which the group is expected to
// start; zero if it is unknown or after until, unless that is zero. The nominations of the members
// are ignored.
func (a *groupAttempt) planStart(among map[*cluster.Node]bool, until time.Time) (places []gang.Place, start time.Time) {
	if among != nil && len(a.reserved.lives) == 0 {
		return nil, start
	}
	latest := until.Add(a.reserved.ahead - startMargin)
	_ = gang.WithoutNominations(a.cluster, a.attempt.Members, func() error {
		places, start = a.attempt.PlanReservation(among, func(p *cluster.Pod) time.Time {
			end := a.reserved.knownEnd(p)
			if !until.IsZero() && end.After(latest) {
				return time.Time{}
			}
			return end
		})
		return nil
	})
	if !start.IsZero() {
		start = start.Truncate(time.Minute).Add(startMargin)
	}
	return places, start
}

// nominatedNodes returns the nodes to which members are nominated.
func (a *groupAttempt) nominatedNodes() map[*cluster.Node]bool {
	nodes := map[*cluster.Node]bool{}
	for _, m := range a.members {
		if p := a.cluster.Nominated(m.Pod.UID); p != nil {
			nodes[a.cluster.Node(p.Nominated)] = true
		}
	}
	return nodes
}

// suspendNominations withdraws the nominations of members with held room while the group is
// decided, so that members do not block each other's room.
func (a *groupAttempt) suspendNominations() {
	if r := a.reserved.heldFor(a.group); r != nil {
		a.suspended = a.reserved.lift(r)
	}
}

// resumeNominations undoes suspendNominations.
func (a *groupAttempt) resumeNominations() {
	a.reserved.putBack(a.suspended)
	a.suspended = nil
}

// releaseRoom ends the reservation of a placed group. Its unused room may help other pods.
func (a *groupAttempt) releaseRoom() {
	a.reserved.endFor(a.group, true)
	a.group.Since = time.Time{}
	for _, p := range a.suspended {
		if placed := a.cluster.Pod(p.UID); placed == nil || placed.NodeName != p.Nominated {
			a.events.podRemoved(p, a.cluster.Node(p.Nominated), nil)
		}
	}
}

// countHeld counts the members with held room on a node that still exists.
func (a *groupAttempt) countHeld(r *Reservation) (count int) {
	for _, m := range a.members {
		if a.cluster.Node(r.Nodes[m.Pod.UID]) != nil {
			count++
		}
	}
	return count
}

// shareOf returns the share of the cluster's CPU or memory that pods request, whichever is larger.
func (a *groupAttempt) shareOf(pods []*cluster.Pod) float64 {
	var cpu, memory, allCPU, allMemory float64
	for i := range a.cluster.Rooms {
		allCPU, allMemory = allCPU+float64(a.cluster.Rooms[i].CPU), allMemory+float64(a.cluster.Rooms[i].Memory)
	}
	for _, p := range pods {
		r := &p.Class.Requests
		cpu, memory = cpu+float64(r.MilliCPU), memory+float64(r.Memory)
	}
	return max(cpu/max(allCPU, 1), memory/max(allMemory, 1))
}
