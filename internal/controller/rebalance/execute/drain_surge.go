package execute

import (
	"fmt"
	"slices"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// surgeEnded has a pod stay whose surges keep failing. What the plan predicts needs no other one,
// unless more pods of the workload leave, which waited for this one.
func (d *Drainer) surgeEnded(s *surge) {
	d.stale = d.stale || s.why != "" || d.waitsFor(s)
	if d.stage == recovering {
		d.restored, d.settled = append(d.restored, s), d.now.Add(settlesFor)
	}
	if s.why == "" {
		return
	}
	if s.outdated { // such as a workload that another run scales
		d.held[s.UID] = putOff{d.paced(s.UID), s.why}
		return
	}
	// A surge that fails is tried again with a new plan, since another node may do. After
	// mostSurges the pod stays, and the drain ends with the reason; without a surge it would have a
	// gap, which --surge is to prevent.
	if d.tried[s.UID]++; s.final || d.tried[s.UID] >= mostSurges {
		d.stays[s.UID] = fmt.Sprintf("%s/%s stays: %s", s.Namespace, s.Name, s.why)
	}
}

// restoring reports whether surges of an earlier run are still being put back that the drain waits
// for: all of them if it is to do nothing else, and otherwise those of pods that exist.
func (d *Drainer) restoring() bool {
	return slices.ContainsFunc(d.surges.list, func(s *surge) bool { return d.options.OnlyRestore && !d.rolls || !s.foreign })
}

// waitsFor reports whether another pod of a surge's workload is still to leave.
func (d *Drainer) waitsFor(s *surge) bool {
	return d.plan != nil && slices.ContainsFunc(d.plan.Pods, func(p rebalance.Departure) bool {
		victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
		return victim != nil && victim.DeletionTimestamp == nil && rules.OwnerOf(victim) == s.owner
	})
}

// crowded reports whether pods that surges of an earlier run had in addition are still there. Until
// they are gone they take up room, so that a plan may find none for the next surge. It gives up
// after settlesFor.
func (d *Drainer) crowded() bool {
	if !d.now.Before(d.settled) {
		return false
	}
	d.wake(d.settled)

	return slices.ContainsFunc(d.restored, func(s *surge) bool {
		object, count := d.cluster.scaled(s.scaled), 0
		// Whose the pods are is not known once the victim is gone. Where others have scaled up
		// since, none is too many.
		if object == nil || s.owner.UID == "" || replicasOf(object) > s.note.replicas+1 {
			return false
		}
		for _, p := range d.cluster.PodsOf(s.owner) {
			if !rules.IsTerminal(p) {
				count++
			}
		}
		return count > int(s.note.replicas)
	})
}
