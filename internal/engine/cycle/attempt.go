// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file begins an attempt, and returns its pod to the queue. The decision in between is in
// decide.go, and the report of the reason in report.go.

// attempts decides pods. An attempt takes a pod from the queue and ends in a placement, or requeues
// the pod with the reason. An attempt with an asynchronous question is suspended until the answer
// arrives.
//
// The only lasting effect of a failed attempt is its final nomination. All its counts and
// reservations are released in the same step, or with the last outcome of its actions.
type attempts struct {
	*common
	events      *clusterEvents
	nominations *nominations
	decisions   *decisions
	placements  *placements
	podGroups   *podGroups
	reserved    *reservations
	preemptions *preemptions
	profiles    *profiles

	asking    int            // number of unanswered asynchronous questions
	preparing map[string]int // number of pods being prepared asynchronously, by namespace
	limits    gang.Limits    // limits of attempts for groups; changed by tests
}

// newAttempt begins an attempt for a pod. The returned attempt is not registered anywhere, and can
// simply be dropped. Every attempt draws a random number for Sampled, so that the sequence of
// random numbers is the same with and without metrics.
func (s *attempts) newAttempt(p *servedProfile, item *queue.Item) *podAttempt {
	pod := item.Pod
	a := &podAttempt{profile: p, item: item, began: s.now, watch: s.clock()}
	waiting := cluster.NewPod(item.Class, pod.Name, pod.UID) // the cluster keeps it while the pod exists
	waiting.Created = cluster.TimeOf(pod.CreationTimestamp.Time)
	if item.Resizes() {
		waiting.SetNominated(pod.Spec.NodeName) // victims leave that node, and no other pod takes their room
	} else if nominated := s.cluster.Nominated(pod.UID); nominated != nil {
		waiting.SetNominated(nominated.Nominated)
	} else {
		waiting.SetNominated(pod.Status.NominatedNodeName)
	}
	a.Attempt = Attempt{
		Pod: pod, Waiting: waiting, Profile: pod.Spec.SchedulerName, Cluster: s.cluster, Sampled: s.rng.IntN(100) < sampled,
	}
	a.placement.podAttempt = a
	return a
}

// requeueUnschedulable requeues an unschedulable pod to wait for a helpful event, and reports why.
// nominate is the pod's new nomination; nil leaves it unchanged.
func (s *attempts) requeueUnschedulable(a *podAttempt, w *unschedulableReason, nominate *string) {
	s.observer().Attempted(a.Profile, Unschedulable, s.clock().Sub(a.watch))
	if w.retry {
		s.queue.Failed(a.item, s.now)
	} else {
		s.queue.Rejected(a.item, w.plugins, w.pending, s.now)
	}
	s.preemptions.noteUnschedulable(a.item)
	s.decisions.rememberFailure(a, decision.Unschedulable, w)
	s.reportFailure(a, v1.PodReasonUnschedulable, w.message, nominate)
}

// reportFailure changes the nomination of a requeued pod, and reports why the pod is not scheduled.
func (s *attempts) reportFailure(a *podAttempt, reason, message string, nominate *string) {
	s.nominations.setNomination(&a.Attempt, a.item, nominate)
	s.report(a.item, reason, message, nominate, s.preemptions.nominationTicket(a.Pod.UID))
}

// pluginVerdict is implemented by errors that represent a plugin's verdict rather than a failure.
type pluginVerdict interface {
	error
	Unschedulable() bool
}

// requeueFailed requeues a pod after an attempt that ended with an error, and reports the error. As
// upstream, the pod is retried after its back-off without an event, and loses its nomination. An
// error representing a plugin's verdict is reported as Unschedulable, but the pod also backs off.
func (s *attempts) requeueFailed(a *podAttempt, err error) {
	result, reason, told := Errored, v1.PodReasonSchedulerError, decision.Failed
	if refused := (pluginVerdict)(nil); errors.As(err, &refused) && refused.Unschedulable() {
		result, reason, told = Unschedulable, v1.PodReasonUnschedulable, decision.Unschedulable
	}
	s.observer().Attempted(a.Profile, result, s.clock().Sub(a.watch))
	s.queue.Failed(a.item, s.now)
	s.decisions.rememberFailure(a, told, &unschedulableReason{message: err.Error()})
	s.reportFailure(a, reason, err.Error(), new(string))
}

// requeuePlacement requeues the pod of a placement.
func (s *attempts) requeuePlacement(b *placement, err error) {
	s.preemptions.forgetVictim(b.Pod.UID)
	if s.queue.Get(b.Pod.UID) == nil { // its profile was removed, and may have been added again since
		s.addAction(ReadPod{nameOf(b.Pod)})
	}
	if refused := (*rejection)(nil); errors.As(err, &refused) {
		w := &unschedulableReason{message: refused.Error(), plugins: []string{refused.plugin}}
		if refused.Pending {
			w.pending = w.plugins
		}
		s.requeueUnschedulable(b.podAttempt, w, new(string))
	} else {
		s.requeueFailed(b.podAttempt, err)
	}
	if b.permit != nil && b.permit.preempted {
		err = errPreempted
	}
	if !b.sibling {
		s.podGroups.memberLost(b.item, err)
	}
}

// noteBound checks whether a bound pod completes the quorum of its group.
func (s *attempts) noteBound(b *placement) {
	if g := s.groupOf(b.item); g != nil {
		s.podGroups.updateScheduled(g)
	}
}

// compare evaluates every node for a pod bound by another scheduler, in the possible states of the
// nodes at that scheduler's decision. The evaluation is a trial: no pod remains placed, and the
// attempt is not counted.
func (s *attempts) compare(pod *v1.Pod) {
	item := s.queue.Get(pod.UID)
	if s.shadow == nil || item == nil || pod.Spec.NodeName == "" || rules.IsTerminal(pod) {
		return
	}
	p := s.profiles.byName[item.Pod.Spec.SchedulerName]
	a := s.newAttempt(p, item)
	for _, e := range p.begin {
		e.Begin(&a.Attempt)
	}
	evaluation, unclear := s.shadow.Judge(item, pod.Spec.NodeName, func() *decide.Evaluation { return p.Plain().Evaluate(a.Waiting) })
	s.addAction(Compared{pod, pod.Spec.NodeName, evaluation, unclear})
	a.endAttempt(false)
}

// Compared reports another scheduler's placement of a pod served by a profile, with every plugin's
// verdict on every node before the placement. Only a shadow core returns it.
type Compared struct {
	Pod        *v1.Pod
	Node       string
	Evaluation *decide.Evaluation
	// Unclear is set if the other scheduler may have decided the pod in a state of the cluster that
	// the shadow did not evaluate.
	Unclear bool
}

func (a Compared) String() string {
	if a.Unclear {
		return fmt.Sprintf("compared %s on %s: unclear", podName(a.Pod), a.Node)
	}
	return fmt.Sprintf("compared %s on %s", podName(a.Pod), a.Node)
}
