// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// pod is a pod of this course, with its record in the journal. The two have separate times: here, a
// pod may start earlier or later, on another node, or not at all.
type pod struct {
	object *v1.Pod // object in this world's API; nil once deleted
	fate   *Fate   // nil if the pod is not scheduled here

	// As recorded: the time of its binding, its running time if it ended, and whether it was
	// preempted.
	bound  time.Time
	ran    time.Duration
	ended  *v1.Pod
	victim bool
	// In this course: the time of its binding, and whether it is being preempted.
	began   time.Time
	leaves  bool
	unasked bool // the pod would replace a pod that still exists here, so it does not appear
	goes    bool // the object is removed once the pod has ended
}

// seePod applies the journal's state of a pod. For a pod scheduled in this course, it applies only
// changes that the scheduler did not make; see changePod.
func (d *day) seePod(seen *v1.Pod) {
	switch p := d.pods[seen.UID]; {
	case p == nil:
		d.newPod(seen)
	case p.unasked:
	case p.fate == nil && (p.leaves || p.victim): // preempted in this course or in the recorded one
	case p.fate == nil && isPreempted(seen) && d.schedulesPod(seen):
		d.noteVictim(p, seen)
	case p.fate == nil: // placed by another scheduler, or before the journal began
		p.object = seen
		d.showPod(seen)
	default:
		d.changePod(p, seen)
	}
}

// newPod adds a pod that appears for the first time in the journal. A pod already placed, or served
// by another scheduler, is taken unchanged. Any other pod is pending here, regardless of its
// recorded fate, unless it is a replacement to suppress (day.spare).
func (d *day) newPod(seen *v1.Pod) {
	p := &pod{}
	d.pods[seen.UID] = p
	switch owner := rules.OwnerOf(seen); {
	case seen.Spec.NodeName != "" || rules.IsTerminal(seen) || !d.schedulesPod(seen):
		p.object = seen
	case d.spare[owner] > 0:
		d.spare[owner]--
		p.unasked = true
		return
	default:
		object := *seen
		object.Status.NominatedNodeName = ""
		p.object, p.fate = &object, d.course.newFate(seen, d.now)
		if name := seen.Spec.SchedulerName; d.core.Decider(name) == nil {
			d.course.Unserved[name]++
		}
	}

	d.showPod(p.object)
}

// changePod applies external changes to a pod scheduled here: it ended, it was deleted, or it was
// edited. It records the node to which the pod was bound in the journal, without binding the pod
// here.
func (d *day) changePod(p *pod, seen *v1.Pod) {
	if seen.Spec.NodeName != "" && p.bound.IsZero() {
		p.bound, p.fate.Recorded = d.now, seen.Spec.NodeName
	}
	switch {
	case rules.IsTerminal(seen) && p.ended == nil:
		p.ended = seen
		if p.bound.IsZero() { // the pod never ran, so it also ends here without running
			d.endPod(p)
			return
		}
		p.ran = d.now.Sub(p.bound)
		d.scheduleEnd(p)

	case seen.DeletionTimestamp == nil:
		d.editPod(p, seen)
	case isPreempted(seen) && !p.victim:
		d.noteVictim(p, seen)
	case !p.victim && p.object != nil && p.object.DeletionTimestamp == nil:
		object := *p.object
		object.DeletionTimestamp, object.DeletionGracePeriodSeconds = seen.DeletionTimestamp, seen.DeletionGracePeriodSeconds
		p.object = &object
		d.showPod(&object)
	}
}

// noteVictim records that a pod was preempted in the journal. The recorded replacement is
// unnecessary here, or was already created, so the next new pod of its controller is suppressed.
func (d *day) noteVictim(p *pod, seen *v1.Pod) {
	p.victim = true
	if owner := rules.OwnerOf(seen); owner != (rules.Owner{}) {
		d.spare[owner]++
	}
}

// schedulesPod reports whether the pod's scheduler name is served in this course, or was served by
// the journal's scheduler.
func (d *day) schedulesPod(p *v1.Pod) bool {
	return d.served[p.Spec.SchedulerName] || d.core.Decider(p.Spec.SchedulerName) != nil
}

// editPod applies users' changes of a pod: labels, gates and so on. The pod keeps its node,
// deletion and status in this course.
func (d *day) editPod(p *pod, seen *v1.Pod) {
	was := p.object
	if was == nil || maps.Equal(was.Labels, seen.Labels) && maps.Equal(was.Annotations, seen.Annotations) &&
		was.Generation == seen.Generation &&
		len(was.Spec.SchedulingGates) == len(seen.Spec.SchedulingGates) && len(was.Spec.Tolerations) == len(seen.Spec.Tolerations) &&
		reflect.DeepEqual(was.Status.ResourceClaimStatuses, seen.Status.ResourceClaimStatuses) {
		return
	}
	object := *seen
	object.Spec.NodeName, object.DeletionTimestamp = was.Spec.NodeName, was.DeletionTimestamp
	object.Status = was.Status
	object.Status.ResourceClaimStatuses = seen.Status.ResourceClaimStatuses
	if len(was.Spec.SchedulingGates) > 0 && len(object.Spec.SchedulingGates) == 0 {
		p.fate.Since = d.now
	}
	p.object = &object
	d.showPod(&object)
}

// losePod removes a pod that the journal shows as deleted, unless the pod still exists in this
// course.
func (d *day) losePod(uid types.UID) {
	switch p := d.pods[uid]; {
	case p == nil || p.object == nil:
		delete(d.pods, uid)
	case p.victim && !p.leaves: // the pod is not preempted in this course
	case p.fate != nil && p.ended != nil && !rules.IsTerminal(p.object): // the pod has not yet run here for its recorded time
		p.goes = true
	default:
		d.removePod(p)
		delete(d.pods, uid)
	}
}

// removePod removes a pod from the world and releases its devices.
func (d *day) removePod(p *pod) {
	last := p.object
	p.object = nil
	if p.fate != nil {
		p.fate.Gone = d.now
	}
	placed := d.core.View().Cluster.Pod(last.UID)
	d.feedEvent(cycle.Gone{Kind: cycle.Pods, Object: last})
	if placed != nil {
		d.controllers.Gone(placed)
	}
}

// bindPod gives a pod its node. From then on it runs for its recorded running time, if it ended.
func (d *day) bindPod(a cycle.Bind) {
	p := d.pods[a.Attempt.Pod.UID]
	if p == nil || p.object == nil {
		return
	}
	object := *p.object
	object.Spec.NodeName, object.Status.NominatedNodeName = a.Attempt.Node, ""
	p.object, p.began = &object, d.now
	p.fate.Node, p.fate.Placed = a.Attempt.Node, d.now
	d.showPod(&object)
	d.scheduleEnd(p)
}

// scheduleEnd ends a bound pod after its recorded running time. It is called when either the end or
// the start of the running time becomes known.
func (d *day) scheduleEnd(p *pod) {
	if p.ended == nil || p.began.IsZero() || p.object == nil {
		return
	}
	d.agenda.Add(p.began.Add(max(p.ran, 0)), func() { d.endPod(p) })
}

// endPod ends a pod with its recorded result, succeeded or failed. If the journal has meanwhile
// deleted the pod, endPod also removes it.
func (d *day) endPod(p *pod) {
	if p.object == nil || rules.IsTerminal(p.object) {
		return
	}
	object := *p.object
	object.Status.Phase = p.ended.Status.Phase
	p.object = &object
	if p.began.IsZero() {
		p.fate.Gone = d.now
	}
	d.showPod(&object)
	if p.goes {
		d.removePod(p)
		delete(d.pods, object.UID)
	}
}

// removeVictim deletes a victim. Depending on its kind, its controller replaces it while it is
// terminating, or once it has ended. If the journal has the delays of the same pod or controller,
// they are used.
func (d *day) removeVictim(a cycle.Remove) {
	p := d.pods[a.Victim.UID]
	if p == nil || p.object == nil || p.object.DeletionTimestamp != nil {
		return
	}
	p.leaves = true
	if p.fate != nil && p.fate.Again {
		d.course.PreemptedAgain++
	} else {
		d.course.Preempted = append(d.course.Preempted, Name{p.object.Namespace, p.object.Name})
	}
	if p.fate != nil {
		p.fate.Preempted = true
	}

	grace := claimcontrollers.GraceOf(p.object)
	object := *p.object
	object.DeletionTimestamp = &metav1.Time{Time: d.now.Add(grace)}
	p.object = &object
	d.showPod(&object)
	owner := metav1.GetControllerOfNoCopy(&object)
	succession := workload.SuccessionOf(owner, nil)
	replace := func(after time.Duration) { d.agenda.Add(d.now.Add(after), func() { d.createReplacement(&object) }) }
	if succession == workload.AtOnce {
		replace(cmp.Or(d.recalled.renewing[owner.UID], controllerTakes))
	}
	d.agenda.Add(d.now.Add(d.recalled.leavingTime(&object, grace)), func() {
		if p.object == nil { // the pod was deleted meanwhile
			return
		}
		if d.removePod(p); succession == workload.WhenGone {
			replace(controllerTakes)
		}
	})
}

// controllerTakes is the delay until a controller replaces a pod, if the journal has no time for
// it. Because of the delay, pods that are already pending are tried before the replacement, as in
// the journal.
const controllerTakes = 50 * time.Millisecond

// leavingTime returns a victim's termination time: the recorded time, or otherwise the longest time
// of its controller's pods, or otherwise its grace period.
func (k Known) leavingTime(p *v1.Pod, grace time.Duration) time.Duration {
	if took, ok := k.leaving[p.UID]; ok {
		return took
	}
	if took, ok := k.leaving[rules.OwnerOf(p).UID]; ok {
		return took
	}
	return grace
}

// createReplacement creates the replacement of a victim. Its name and UID mark it as absent from
// the journal.
func (d *day) createReplacement(of *v1.Pod) {
	d.course.again++
	number := fmt.Sprintf("-again-%d", d.course.again)
	named := func(*v1.Pod, *metav1.OwnerReference) string { return of.Name + number }
	object := workload.Successor(of, of.UID+types.UID(number), named, metav1.NewTime(d.now))
	p := &pod{object: object, fate: d.course.newFate(object, d.now)}
	p.fate.Again = true
	d.pods[object.UID] = p
	d.showPod(object)
}

// recordClaim records the ResourceClaim for a pod's extended resources in the pod's status.
func (d *day) recordClaim(uid types.UID, status *v1.PodExtendedResourceClaimStatus) {
	if p := d.pods[uid]; p != nil && p.object != nil {
		object := *p.object
		object.Status.ExtendedResourceClaimStatus = status
		p.object = &object
	}
}

// isPreempted reports whether a scheduler has preempted the pod.
func isPreempted(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
	})
}
