// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"slices"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// surgeEnded keeps a pod on its node after repeated surge failures. A successful surge, which the
// plan predicted, needs no new plan unless other departing pods of the workload wait for its end.
func (d *Drainer) surgeEnded(s *surge) {
	d.stale = d.stale || s.why != "" || d.waitsFor(s)
	if d.stage == recovering {
		d.restored, d.settled = append(d.restored, s), d.now.Add(settlesFor)
	}
	if s.why == "" {
		return
	}
	if s.outdated { // for example, another run scales the workload
		d.held[s.UID] = putOff{d.paced(s.UID), s.why}
		return
	}
	// A failed surge is retried with a new plan, because another node may work. After mostSurges
	// the pod stays, and the drain ends with the reason: evicting without a surge would cause the
	// gap that --surge prevents.
	if d.tried[s.UID]++; s.final || d.tried[s.UID] >= mostSurges {
		d.stays[s.UID] = fmt.Sprintf("%s/%s stays: %s", s.Namespace, s.Name, s.why)
	}
}

// restoring reports whether the drain waits for surges of an earlier run to be undone. A drain with
// OnlyRestore that was not begun by a Roller waits for all of these surges. Any other drain waits
// only for the surges of existing pods.
func (d *Drainer) restoring() bool {
	return slices.ContainsFunc(d.surges.list, func(s *surge) bool { return d.options.OnlyRestore && !d.rolls || !s.foreign })
}

// waitsFor reports whether another pod of a surge's workload must still leave.
func (d *Drainer) waitsFor(s *surge) bool {
	return d.plan != nil && slices.ContainsFunc(d.plan.Pods, func(p rebalance.Departure) bool {
		victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
		return victim != nil && victim.DeletionTimestamp == nil && rules.OwnerOf(victim) == s.owner
	})
}

// crowded reports whether additional pods from surges of an earlier run still exist. These pods
// occupy room that the next surge may need. After the time settled, crowded returns false even if
// they exist.
func (d *Drainer) crowded() bool {
	if !d.now.Before(d.settled) {
		return false
	}
	d.wake(d.settled)

	return slices.ContainsFunc(d.restored, func(s *surge) bool {
		object := d.cluster.scaled(s.scaled)
		// The owner of the pods is unknown once the victim has been deleted. If the workload has
		// been scaled up meanwhile, it has no surplus pod.
		if object == nil || s.owner.UID == "" || replicasOf(object) > s.note.raised() {
			return false
		}
		pods := slices.DeleteFunc(d.cluster.PodsOf(s.owner), rules.IsTerminal)
		return len(pods) > int(s.note.replicas)
	})
}
