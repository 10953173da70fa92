// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// reserveRoom returns the room held for members of a group that fits nowhere, or nil.
func (a *groupAttempt) reserveRoom() *Reservation {
	bounds := a.profile.Reservations
	if len(a.members) < a.attempt.Need {
		return nil
	}
	if !a.reserved.isDue(a.group, bounds) {
		a.reserved.endFor(a.group, false)
		return nil
	}
	if r := a.reserved.heldFor(a.group); r != nil && a.countHeld(r) >= a.attempt.Need {
		return r
	}

	a.suspendNominations()
	places := a.attempt.PlanReservation()
	others := a.reserved.nominees(a.reserved.held...)
	a.resumeNominations()
	pods := rules.Mapped(places, func(p gang.Place) *cluster.Pod { return p.Waiting })
	fits := len(places) >= a.attempt.Need && a.shareOf(pods) <= bounds.Share
	if fits && a.shareOf(append(pods, others...)) > bounds.Share {
		a.reserved.next = a.group.Object.UID
		fits = false
	} else if a.reserved.next == a.group.Object.UID {
		a.reserved.next = ""
	}
	if !fits {
		a.reserved.endFor(a.group, false)
		return nil
	}

	a.reserved.holdNodes(a.group, nodesByPod(places), bounds.For)
	return a.reserved.heldFor(a.group)
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
