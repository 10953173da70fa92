// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file makes room for one pod: it finds victims, and requests their eviction, which is in
// evict.go. Preemption for groups is in grouppostfilter.go, the reduction of disruption budgets is
// in budgets.go.

// preemptFor looks for victims to make room for a pod that fits on no node. As upstream, the
// preemptor is not placed now: it is nominated, and retried when the removals have completed or its
// victims have terminated. The victims count as terminating from this step on.
func (pr *preemptions) preemptFor(a *podAttempt) PostFilterResult {
	if r, done := pr.reuseEvictions(a); done {
		return r
	}
	began := pr.clock()
	found := pr.victimsFor(a)
	// An extender must be called first; the metric is updated only after the result of the extender
	// arrives.
	if aside := (*plugins.PendingQuery)(nil); errors.As(found.Err, &aside) {
		return PostFilterResult{Err: aside}
	}
	took := pr.clock().Sub(began)
	if errors.Is(found.Err, decide.ErrTooLong) {
		pr.observer().Preempted(Preempted{Status: Broken, Searched: true, Took: took})
		return PostFilterResult{Err: found.Err}
	}

	// Preempting a member of a gang preempts its whole unit.
	if found.Node != nil {
		found.Victims = pr.podGroups.units.Complete(found.Victims)
	}
	pr.observer().Preempted(Preempted{
		Status: preemptionOutcome(found), Searched: true, Took: took, Victims: len(found.Victims), Violations: found.Violations,
	})
	if found.Node == nil {
		found.NameDevice(pr.cluster, a.profile.Profile.Profile, a.Waiting)
		r := PostFilterResult{Message: found.Text(), Rejectors: found.Plugins}
		if !found.Ineligible {
			none := ""
			r.Nominate = &none
		}
		return r
	}

	pr.makeRoom(a, found)
	return PostFilterResult{Nominate: &found.Node.Name, Message: found.Text(), Final: true}
}

// preemptionOutcome names the outcome for the metric.
func preemptionOutcome(found decide.Preemption) PreemptionOutcome {
	switch {
	case found.Err != nil:
		return Broken
	case found.Node == nil:
		return NoHelp
	}
	return FoundVictims
}

// victimsFor looks for victims in two searches. The first search excludes groups that would violate
// a budget if removed as a whole; the second includes them. Like upstream's last resort, the second
// search may violate budgets. A profile that keeps budgets omits the second search, except for
// system-critical pods.
func (pr *preemptions) victimsFor(a *podAttempt) decide.Preemption {
	pr.forgetCounted()
	priority := a.Waiting.Class.Priority
	preemptor := gang.Preemptor{Group: pr.groupOf(a.item), Lowest: priority, Highest: priority, Gentle: a.profile.GentlePreemption}
	if spared := pr.victimsSparing(preemptor, a); spared.Err != nil || spared.Node != nil && spared.Violations == 0 {
		return spared
	}

	stand := pr.podGroups.units.Protect(preemptor, true)
	shielded := stand.Len()
	found := preemptBehind(stand, a)
	if shielded == 0 || found.Node != nil || found.Err != nil || found.Ineligible || a.profile.KeepBudgets &&
		priority < rules.SystemCritical {
		return found
	}
	stand = pr.podGroups.units.Protect(preemptor, false)
	if stand.Len() == shielded { // no group was excluded because of a budget
		stand.Release()
		return found
	}
	return preemptBehind(stand, a)
}

// MinRunTimeAnnotation of a PriorityClass overrides the profile's MinRunTime for the pods of the
// class. Its value is a duration; an invalid or negative value is ignored.
const MinRunTimeAnnotation = "berth.dev/preemption-min-run-time"

// victimsSparing looks for victims among the pods that have run for their minimum run time. It
// finds none if no pod has a minimum run time.
func (pr *preemptions) victimsSparing(preemptor gang.Preemptor, a *podAttempt) decide.Preemption {
	if !a.profile.GentlePreemption {
		return decide.Preemption{}
	}
	least := map[string]time.Duration{}
	for class := range pr.cluster.PriorityClasses.Each {
		if d, err := time.ParseDuration(class.Annotations[MinRunTimeAnnotation]); err == nil && d >= 0 {
			least[class.Name] = d
		}
	}
	if a.profile.MinRunTime == 0 && len(least) == 0 {
		return decide.Preemption{}
	}

	now := pr.wallTime()
	preemptor.Spares = func(p *cluster.Pod) bool {
		d, own := least[p.Spec().PriorityClassName]
		if !own {
			d = a.profile.MinRunTime
		}
		return d > 0 && p.Started.Compare(cluster.TimeOf(now.Add(-d))) > 0
	}
	return preemptBehind(pr.podGroups.units.Protect(preemptor, true), a)
}

// preemptBehind looks for victims while stand protects the excluded pods. It releases stand even if
// a plugin panics.
func preemptBehind(stand *gang.ProtectedPods, a *podAttempt) decide.Preemption {
	defer stand.Release()
	return a.profile.Preempt(a.Waiting)
}

// makeRoom starts the removal of the victims. It clears the nominations of lower-priority pods to
// the node, because the preemptor takes their room. Each of these pods is retried and may find
// another node.
func (pr *preemptions) makeRoom(a *podAttempt, found decide.Preemption) {
	n := found.Node
	// Iterate over a copy, since moveOn changes the list.
	for _, waiting := range append([]*cluster.Pod(nil), n.Nominated...) {
		if waiting.Class.Priority < a.Waiting.Class.Priority {
			pr.nominations.moveOn(waiting)
		}
	}
	// If the scheduler is killed after an eviction, the nomination makes the next one wait on the
	// same node. Otherwise it might evict other pods, on a node that is as cheap as this one was.
	nominating := !a.item.Resizes() && a.Pod.Status.NominatedNodeName != n.Name &&
		a.profile.Profile.PreemptedDevices(pr.cluster, a.Waiting) != nil
	a.victims = pr.evictPods(found.Victims, preemptor{"pod", a.Pod.UID, a.Profile, n.Name, nominating})
	pr.countVictims("")
}
