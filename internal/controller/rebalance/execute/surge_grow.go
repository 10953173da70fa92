// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world"
)

// looksEvery is the longest pause between looks at a surge that waits. Budgets cause these looks,
// because they also cover pods of other workloads.
const looksEvery = time.Second

// touch makes the surges of a changed object due. A look at all surges for each event would be too
// expensive.
func (ss *surges) touch(object metav1.Object) {
	owner := metav1.GetControllerOfNoCopy(object)
	for _, s := range ss.list {
		if uid := object.GetUID(); uid == s.scaled.UID || uid == s.owner.UID || owner != nil &&
			(owner.UID == s.owner.UID || s.scaled.Through != nil && owner.UID == s.scaled.Through.UID) {
			s.looks = time.Time{}
		}
	}
}

// look advances a surge that waits, if it is due.
func (ss *surges) look(s *surge) {
	if ss.now.Before(s.looks) {
		ss.wake(s.looks)
		return
	}
	alarm, step := ss.at, s.step
	ss.at = ss.now.Add(looksEvery)
	switch step {
	case growing:
		ss.grow(s)
	case removing:
		ss.awaitRemoval(s)
	case yielding:
		ss.awaitYield(s)
	}

	if s.looks = ss.at; s.step != step {
		s.looks, ss.at = time.Time{}, time.Time{}
	}
	if !alarm.IsZero() {
		ss.wake(alarm)
	}
}

// grow waits until the successors are ready and the pods may be removed.
//
// It first checks for conditions that end the wait, in this order: a victim is deleted, the
// workload has changed, a successor will never be ready.
func (ss *surges) grow(s *surge) {
	var victims []*v1.Pod
	for _, p := range s.all() {
		victim := ss.victim(p)
		if victim == nil || victim.DeletionTimestamp != nil {
			ss.giveUp(s, "it was deleted for another reason")
			return
		}
		victims = append(victims, victim)
	}

	why, soon := ss.changed(s, ss.cluster.scaled(s.scaled))
	switch {
	// The response may have arrived before the watch event of the new scale.
	case soon && ss.now.Sub(s.since) < pendingFor:
		ss.wake(s.since.Add(pendingFor))
		return
	case why != "":
		ss.giveUp(s, why)
		return
	}

	for _, p := range s.all() {
		next := ss.successorOf(p)
		if next != nil && next.Spec.NodeName != "" && !p.placed {
			p.placed = true
			ss.policy.report(p, Arrived, next.Spec.NodeName, next.Name)
		}
		if why := ss.hopeless(s, p, next); why != "" {
			ss.giveUp(s, why)
			return
		}
		if why := ss.removable(victims, next); why != "" {
			ss.explain(s, victims, next)
			if ss.now.Sub(s.since) >= unreadyFor {
				s.final = true
				ss.giveUp(s, why)
				return
			}
			ss.wake(s.since.Add(unreadyFor))
			return
		}
	}
	// The controller considers deletion cost only if all pods are ready.
	if ss.cluster.whole(s.owner) {
		s.enter(lowering, ss.now)
		return
	}
	s.enter(leaving, ss.now)
}

// changed returns another client's change to a scaled-up workload, or "". soon is set if the
// expected scale may arrive soon: it may not have been observed yet, or the object that scales the
// workload may not have propagated it. A scale set by another client is never overwritten: the
// surge is given up, and only its label is removed.
func (ss *surges) changed(s *surge, object metav1.Object) (why string, soon bool) {
	if object == nil || object.GetLabels()[rebalance.SurgeLabel] != s.note.String() {
		return "another client has changed the scale", true
	}
	switch wanted := replicasOf(object); {
	case !equality.Semantic.DeepEqual(templateOf(object), s.template) || ss.cluster.split(object):
		return fmt.Sprintf("a rollout of %s has begun", s.scaled), false
	case wanted != s.note.raised():
		return fmt.Sprintf("%s was scaled to %d meanwhile", s.scaled, wanted), s.scaled.Through != nil && wanted == s.note.replicas
	}
	return "", false
}

// hopeless returns the reason the successor will not become ready, or "". Limits differ by cause:
// half a minute for a rejected pod or a container that does not start, and a minute for an
// unschedulable pod.
func (ss *surges) hopeless(s *surge, p *departure, next *v1.Pod) string {
	if next == nil {
		if why := ss.cluster.notMade(s.Namespace, s.Owner); why != "" && ss.now.Sub(s.since) >= failsFor {
			return "no additional pod was created: " + why
		}
		if ss.now.Sub(s.since) >= pendingFor {
			return "no additional pod was created"
		}
		until := s.since.Add(failsFor)
		if !ss.now.Before(until) {
			until = s.since.Add(pendingFor)
		}
		ss.wake(until)
		return ""
	}

	if next.Spec.NodeName == "" {
		if ss.now.Sub(s.since) >= pendingFor {
			return homeless(next)
		}
		ss.wake(s.since.Add(pendingFor))
		return ""
	}

	switch why := failing(next); {
	// The container has recovered, so the time limit restarts with the next failure.
	case why == "":
		p.bad = time.Time{}
	case p.bad.IsZero():
		p.bad = ss.now
		ss.wake(ss.now.Add(failsFor))
	case ss.now.Sub(p.bad) >= failsFor:
		s.final = true
		return fmt.Sprintf("its successor %s does not start: %s", next.Name, why)
	default:
		ss.wake(p.bad.Add(failsFor))
	}

	return ""
}

// failing returns the reason a container does not start, or "". ContainerCreating and
// PodInitializing are normal. Any other waiting reason, such as ImagePullBackOff, is a failure.
func failing(p *v1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" || w.Reason == "" {
			continue
		}
		return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
	}
	return ""
}

// removable returns the reason the pods must not be removed yet, or "". Budgets are checked even
// without an eviction: fewer healthy pods, once the scale is restored, may violate a budget that
// also covers other workloads.
func (ss *surges) removable(victims []*v1.Pod, next *v1.Pod) string {
	if next == nil || !rules.HasReadyCondition(next) {
		return "its successor is not ready"
	}
	return ss.cluster.forbids(victims)
}

// awaitRemoval waits until the controller removes the pods.
func (ss *surges) awaitRemoval(s *surge) {
	left := 0
	for _, p := range s.all() {
		if !p.ended && ss.leaves(p) {
			p.ended = true
			ss.leave(p)
		}
		if !p.ended {
			left++
		}
	}
	switch {
	case left == 0:
		s.marked = false
		s.enter(restored, ss.now)
	case ss.raisedAgain(s) != "":
		s.why = ss.raisedAgain(s)
		s.enter(clearing, ss.now)
	// The controller has apparently removed another pod, so this pod stays.
	case ss.now.Sub(s.since) >= removesFor:
		s.why = "the controller has removed another pod instead"
		s.enter(clearing, ss.now)
	default:
		ss.wake(s.since.Add(removesFor))
	}
}

// awaitYield waits until the controller has removed a pod other than the victim. The mark is
// removed afterwards, because it would otherwise keep the pod from being removed when the workload
// is scaled down later.
func (ss *surges) awaitYield(s *surge) {
	if ss.cluster.live(s.owner) <= int(s.note.replicas) || ss.now.Sub(s.since) >= removesFor {
		s.enter(clearing, ss.now)
		return
	}
	ss.wake(s.since.Add(removesFor))
}

// raisedAgain returns a message if another client scaled the workload up while the pod was marked,
// or "". In that case no pod is surplus. A ReplicaSet scaled through its controller is not checked,
// because the controller propagates the scale later.
func (ss *surges) raisedAgain(s *surge) string {
	object := ss.cluster.scaled(s.scaled)
	if object == nil || s.scaled.Through != nil || object.GetLabels()[rebalance.SurgeLabel] != "" || replicasOf(object) <= s.note.replicas {
		return ""
	}
	return fmt.Sprintf("%s was scaled to %d meanwhile", s.scaled, replicasOf(object))
}

// recover gives up surges left behind by a killed run: all surges of the caller's own pods, and
// other surges older than surgesFor.
//
// own reports whether a pod is about to leave anyway, or its note is the caller's. Younger notes of
// other pods are ignored, because the process that wrote them may be running; recover is called
// again when the first of these notes expires. A note of a deleted pod counts as left behind,
// however young it is.
//
// Any client with write access to a workload can write its label. The effect is limited to a change
// of that workload's scale by one, and at most mostLeft requests; notes of deleted pods delay
// nothing.
func (ss *surges) recover(own func(p *v1.Pod, note surgeNote) bool) {
	ss.expires = time.Time{}
	foreign := 0
	pods := map[types.UID]*v1.Pod{}
	for p := range world.All[*v1.Pod](ss.cluster.World) {
		pods[p.UID] = p
	}
	for object := range ss.cluster.Objects() {
		scaled, scales := scaledOf(object)
		note, ok := readNote(object.GetLabels()[rebalance.SurgeLabel])
		if !scales || !ok || slices.ContainsFunc(ss.list, func(s *surge) bool { return s.scaled.UID == scaled.UID }) {
			continue
		}
		s := &surge{scaled: scaled, note: note,
			departure: &departure{Departure: rebalance.Departure{Namespace: scaled.Namespace, UID: note.pod}}}
		if p := pods[note.pod]; p != nil {
			if age := ss.wall().Sub(time.Unix(note.begun, 0)); !own(p, note) && age < surgesFor {
				ss.expires = pacing.Sooner(ss.expires, ss.now.Add(min(surgesFor-age, surgesFor)))
				continue
			}
			s.Name, s.From, s.owner, s.marked = p.Name, p.Spec.NodeName, rules.OwnerOf(p), Marked(p)
			for _, other := range ss.cluster.PodsOf(s.owner) {
				if other.UID != p.UID && Marked(other) {
					s.marked = true
					s.also = append(s.also, &departure{Departure: rebalance.Departure{Namespace: other.Namespace, Name: other.Name,
						UID: other.UID, From: other.Spec.NodeName}, owner: s.owner})
				}
			}
		} else if foreign++; foreign > mostLeft {
			continue
		}
		s.foreign = s.Name == ""
		ss.giveUp(s, fmt.Sprintf("an earlier run has left %s with one more replica", scaled))
		ss.list = append(ss.list, s)
	}

	for p := range world.All[*v1.Pod](ss.cluster.World) { // pods still marked after another pod was removed
		if !Marked(p) || p.DeletionTimestamp != nil || !own(p, surgeNote{pod: p.UID}) ||
			slices.ContainsFunc(ss.list, func(s *surge) bool { return s.removes(p.UID) }) {
			continue
		}
		s := &surge{departure: &departure{Departure: rebalance.Departure{Namespace: p.Namespace, Name: p.Name,
			UID: p.UID}, owner: rules.OwnerOf(p)}, marked: true, back: true}
		s.why = "an earlier run has left it with another deletion cost"
		s.enter(clearing, ss.now)
		ss.list = append(ss.list, s)
	}
}

// Annotations of a pod marked by a surge.
const (
	costAnnotation = "controller.kubernetes.io/pod-deletion-cost"
	costBefore     = "berth.dev/deletion-cost-before"
)

// Marked reports whether a surge has changed the pod's deletion cost.
func Marked(p *v1.Pod) bool {
	_, marked := p.Annotations[costBefore]
	return marked
}

// MarkOf returns the annotations to change for a Mark request, or nil if none changes. A nil value
// removes the annotation.
//
// The annotation costBefore keeps the pod's original cost for Clear to restore; it is "" if the pod
// had none. Its presence means that the pod is Marked, and a second mark does not overwrite it.
func MarkOf(p *v1.Pod, a Mark) map[string]any {
	before, marked := p.Annotations[costBefore]
	if !marked {
		before = p.Annotations[costAnnotation]
	}
	cost := strconv.Itoa(math.MinInt32)
	if a.Keep {
		cost = strconv.Itoa(math.MaxInt32)
	}

	switch {
	case !a.Clear && marked && p.Annotations[costAnnotation] == cost, a.Clear && !marked:
		return nil
	case !a.Clear:
		return map[string]any{costAnnotation: cost, costBefore: before}
	case before != "":
		return map[string]any{costAnnotation: before, costBefore: nil}
	}
	return map[string]any{costAnnotation: nil, costBefore: nil}
}
