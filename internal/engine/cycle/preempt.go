// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
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
		pr.observer().Preempted(Preempted{Outcome: Broken, Searched: true, Took: took})
		return PostFilterResult{Err: found.Err}
	}

	// Preempting a member of a gang preempts its whole unit.
	if found.Node != nil {
		found.Victims = pr.podGroups.units.Complete(found.Victims)
	}
	pr.observer().Preempted(Preempted{
		Outcome: preemptionOutcome(found), Searched: true, Took: took, Victims: len(found.Victims), Violations: found.Violations,
	})
	if found.Node == nil {
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
	a.victims = pr.evictPods(found.Victims, preemptor{"pod", a.Pod.UID, a.Profile, n.Name})
	pr.countVictims("")
}

// Gentle preemption is an option of a profile: a pod first uses the room of pods that are already
// terminating. Victims are chosen only after the pod has been unschedulable for PreemptionDelay.

// delay is the time at which an unschedulable pod may preempt.
type delay struct {
	until time.Time
	pod   types.UID
}

// reuseEvictions finds room without new victims for a pod of a profile with gentle preemption. The
// room is on nodes with terminating victims of earlier preemptions. During its delay, the pod also
// waits for new nodes. done is false if victims may be chosen for the pod.
func (pr *preemptions) reuseEvictions(a *podAttempt) (r PostFilterResult, done bool) {
	if !a.profile.GentlePreemption || neverPreempts(a.Waiting.Class) {
		return PostFilterResult{}, false
	}
	n, err := pr.roomOfLeavers(a)
	switch aside := (*plugins.PendingQuery)(nil); {
	case errors.As(err, &aside):
		return PostFilterResult{Err: aside}, true
	case errors.Is(err, decide.ErrTooLong):
		return PostFilterResult{Err: err}, true
	case n != nil:
		message := fmt.Sprintf("preemption: the pod waits for node %s, which pods preempted earlier are leaving.", n.Name)
		return PostFilterResult{Nominate: &n.Name, Message: message, Final: true}, true
	case !pr.mustDelay(a.item):
		return PostFilterResult{}, false
	}

	r.Message = fmt.Sprintf("preemption: not before the pod has been unschedulable for %s.", a.profile.PreemptionDelay)
	if n := pr.cluster.Node(a.Waiting.Nominated); n == nil || !slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return p.Preempted }) {
		r.Nominate = new(string)
	}
	return r, true
}

// neverPreempts reports whether pods of the class have preemptionPolicy Never.
func neverPreempts(class *cluster.PodClass) bool {
	policy := class.Spec.PreemptionPolicy
	return policy != nil && *policy == v1.PreemptNever
}

// roomOfLeavers finds a node that will have room for the pod, and for all pods nominated to the
// node, once all preempted pods have terminated. It leaves the cluster unchanged. If there are
// terminating victims, it costs as much as a decision.
func (pr *preemptions) roomOfLeavers(a *podAttempt) (*cluster.Node, error) {
	leavers := pr.onTheirWay()
	if len(leavers) == 0 {
		return nil, nil
	}
	gone := gang.Without(pr.cluster)
	defer gone.RestoreAfter(0)
	for _, p := range leavers {
		gone.Remove(p)
	}
	// The pod must not take the room that lower-priority nominated pods wait for.
	defer gang.ProtectNominations(pr.cluster, a.Waiting.Class.Priority)()
	found := a.profile.Decide(a.Waiting)
	return found.Node, found.Err
}

// noteLeaver records whether a pod is a terminating victim. p is its current state in the cluster
// model, or nil if the pod is not placed.
func (pr *preemptions) noteLeaver(uid types.UID, p *cluster.Pod) {
	if p != nil && p.Preempted {
		pr.leavers[uid] = true
	} else {
		delete(pr.leavers, uid)
	}
}

// onTheirWay lists the preempted pods still terminating on known nodes, sorted.
func (pr *preemptions) onTheirWay() (list []*cluster.Pod) {
	for _, uid := range slices.Sorted(maps.Keys(pr.leavers)) {
		if p := pr.cluster.Pod(uid); p != nil && p.Node != nil && p.Preempted {
			list = append(list, p)
		}
	}
	return list
}

// delayedUntil returns the time before which no victims are chosen for a queued pod, so that an
// autoscaler has time to add nodes. It returns the zero time for critical pods, and for pods
// confined to one node, such as a DaemonSet's, which an autoscaler cannot help.
func (pr *preemptions) delayedUntil(item *queue.Item) time.Time {
	most := pr.delays[item.Pod.Spec.SchedulerName]
	if class := item.Class; most == 0 || class.Priority >= rules.SystemCritical || class.Target != "" || neverPreempts(class) {
		return time.Time{}
	}
	if item.Unfit.IsZero() {
		return pr.now.Add(most)
	}
	return item.Unfit.Add(most)
}

// mustDelay reports whether victims may not be chosen for the pod yet.
func (pr *preemptions) mustDelay(item *queue.Item) bool { return pr.now.Before(pr.delayedUntil(item)) }

// noteUnschedulable records that a queued pod was found unschedulable.
func (pr *preemptions) noteUnschedulable(item *queue.Item) {
	if item.Unfit.IsZero() && pr.queue.Get(item.Pod.UID) == item {
		item.Unfit = pr.now
		pr.scheduleRetry(item)
	}
}

// scheduleRetry schedules a retry of a pod for the time when it may preempt. No retry is scheduled
// if the pod was last tried after that time. Duplicate alarms for a pod are harmless.
func (pr *preemptions) scheduleRetry(item *queue.Item) {
	d := delay{pr.delayedUntil(item), item.Pod.UID}
	if d.until.After(item.Entered()) {
		at, _ := slices.BinarySearchFunc(pr.alarms, d, func(a, b delay) int {
			return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.pod, b.pod))
		})
		pr.alarms = slices.Insert(pr.alarms, at, d)
	}
}

// setAlarms recomputes the delays of all pods. It is called after a change of profiles, which may
// change the delays.
func (pr *preemptions) setAlarms() {
	pr.alarms = nil
	for _, item := range pr.queue.SortedIf(func(item *queue.Item) bool { return !item.Unfit.IsZero() }) {
		pr.scheduleRetry(item)
	}
}

// wakeDelayed wakes the pods that may preempt now.
func (pr *preemptions) wakeDelayed() {
	for len(pr.alarms) > 0 && !pr.alarms[0].until.After(pr.now) {
		pr.queue.Wake(pr.alarms[0].pod, "PreemptionDelayOver", pr.now)
		pr.alarms = pr.alarms[1:]
	}
}
