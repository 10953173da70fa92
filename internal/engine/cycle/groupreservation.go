// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/gang"
)

// reserveRoom returns the nodes, by pod, on which room is held for members of a group that fits
// nowhere. It returns nil if no room is held.
func (a *groupAttempt) reserveRoom() map[types.UID]string {
	bounds := a.profile.Reservations
	if len(a.members) < a.attempt.Need {
		return nil
	}
	if !a.reserved.isDue(a.group, bounds) {
		a.reserved.endFor(a.group)
		return nil
	}
	if a.reserved.held != nil && a.countHeld() >= a.attempt.Need {
		return a.reserved.held.Nodes
	}

	a.suspendNominations()
	places := a.attempt.PlanReservation()
	a.resumeNominations()
	if len(places) < a.attempt.Need || a.shareOf(places) > bounds.Share {
		a.reserved.endFor(a.group)
		return nil
	}

	nodes := nodesByPod(places)
	a.reserved.holdNodes(a.group, nodes, bounds.For)
	return nodes
}

// suspendNominations withdraws the nominations of members with held room while the group is
// decided, so that members do not block each other's room.
func (a *groupAttempt) suspendNominations() {
	if a.reserved.isFor(a.group) {
		a.suspended = a.reserved.lift()
	}
}

// resumeNominations undoes suspendNominations.
func (a *groupAttempt) resumeNominations() {
	a.reserved.putBack(a.suspended)
	a.suspended = nil
}

// releaseRoom ends the reservation of a placed group. Its unused room may help other pods.
func (a *groupAttempt) releaseRoom() {
	a.reserved.endFor(a.group)
	a.group.Since = time.Time{}
	for _, p := range a.suspended {
		if placed := a.cluster.Pod(p.UID); placed == nil || placed.NodeName != p.Nominated {
			a.events.podRemoved(p, a.cluster.Node(p.Nominated), nil)
		}
	}
}

// countHeld counts the members with held room on a node that still exists.
func (a *groupAttempt) countHeld() (count int) {
	for _, m := range a.members {
		if a.cluster.Node(a.reserved.held.Nodes[m.Pod.UID]) != nil {
			count++
		}
	}
	return count
}

// shareOf returns the share of the cluster's CPU or memory used by the places, whichever is larger.
func (a *groupAttempt) shareOf(places []gang.Place) float64 {
	var cpu, memory, allCPU, allMemory float64
	for i := range a.cluster.Rooms {
		allCPU, allMemory = allCPU+float64(a.cluster.Rooms[i].CPU), allMemory+float64(a.cluster.Rooms[i].Memory)
	}
	for _, p := range places {
		r := &p.Waiting.Class.Requests
		cpu, memory = cpu+float64(r.MilliCPU), memory+float64(r.Memory)
	}
	return max(cpu/max(allCPU, 1), memory/max(allMemory, 1))
}
