// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file decides a single pod: the deciders search for a node, and PostFilter runs if no node
// fits. Attempts for whole groups are in decidegroup.go.
//
// A resize deferred by a kubelet is decided like a pod. The pod stays on its node, and is an item
// of the queue until the kubelet accepts the resize. Its request after the resize counts on the
// node throughout, so no other pod takes the room of its victims, and it needs no nomination. As
// upstream, neither an event nor a condition is written to the running pod.

// decidePod decides one pod. When an attempt continues after asynchronous questions, answers holds
// their results, and questions is their number.
func (s *attempts) decidePod(item *queue.Item, answers any, questions int) {
	p := s.profiles.byName[item.Pod.Spec.SchedulerName]
	s.ungrouped(item)
	a := s.newAttempt(p, item)
	a.Async, a.Answers, a.questions = true, answers, questions
	defer s.recoverAttempt(a)
	// A recorded failure does not apply to a pod allowed into reserved room, since the pod that
	// failed may not have been allowed there.
	open := s.reserved.openTo(item)
	if len(open) == 0 && s.knownToFail(a) {
		s.requeueUnschedulable(a, p.failed.why, nil)
		return
	}

	// This precedes Begin, so that an attempt suspended here has not called a stateful plugin.
	if s.startPreparing(a) {
		return
	}
	for _, e := range p.begin {
		e.Begin(&a.Attempt)
	}

	found := p.Decide(a.Waiting)
	if found.Node == nil && found.Err == nil && len(open) > 0 {
		found = s.decideOntoHeld(a, open)
	}

	switch {
	case s.suspendAttempt(a, found.Err), s.goOnLater(a, found.Err):
	case found.Err != nil:
		if f := (*decide.FilterError)(nil); errors.As(found.Err, &f) && p.bindsVolumes(f.Plugin) {
			s.observer().VolumesFailed("predicate")
		}
		s.observer().Decided(s.clock().Sub(a.watch))
		a.endAttempt(false)
		s.requeueFailed(a, found.Err)
	case found.Node == nil:
		s.handleNoFit(a)
	case item.Resizes():
		s.observer().Decided(s.clock().Sub(a.watch))
		a.endAttempt(false)
		s.parkResize(a, "pod resize fits, waiting for Kubelet actuation")
	default:
		s.observer().Decided(s.clock().Sub(a.watch))
		s.decisions.rememberPlaced(a, found.Node.Name, found.Total, found.Feasible)
		s.placements.assumePod(&a.placement, found.Node)
	}
}

// ungrouped reports, at a pod's first attempt, that its group is ignored because pod groups are
// disabled.
func (s *attempts) ungrouped(item *queue.Item) {
	if s.podGroups.gates.Generic || item.Attempts > 1 || item.Class.Spec.SchedulingGroup == nil {
		return
	}
	s.addAction(RecordEvent{
		Profile: item.Pod.Spec.SchedulerName, Regarding: Reference(item.Pod), Type: v1.EventTypeWarning, Reason: "PodGroupIgnored",
		Message: fmt.Sprintf("the pod names pod group %q and is scheduled without it: the scheduler runs without --feature-gates=%s=true",
			groups.NameOf(item.Pod), groups.GenericWorkload),
	})
}

// decideOntoHeld decides a pod allowed into room held for pod groups. It is called only if the pod
// fits nowhere else.
func (s *attempts) decideOntoHeld(a *podAttempt, open []*Reservation) decide.Decision {
	nominees := s.reserved.lift(open...)
	defer s.reserved.putBack(nominees)
	return a.profile.Decide(a.Waiting)
}

// An attempt that has used up its limit of work continues immediately, after other pods, if it has
// examined at least farEnough nodes. So claims with a low cost per node are decided soon, even in a
// large cluster. If the attempt examined fewer nodes, the claim is hard to satisfy, and the pod
// backs off. Each node is examined once unless it changes in the meantime, so the second limit only
// matters in constantly changing clusters.
const (
	farEnough     = 200
	mostContinued = 100
)

// goOnLater requeues a pod, to continue its attempt after other pods have been tried. It releases
// the room lent for the attempt.
func (s *attempts) goOnLater(a *podAttempt, err error) bool {
	var unfinished *plugins.Unfinished
	if !errors.As(err, &unfinished) || unfinished.Found < farEnough || a.item.Continued >= mostContinued {
		return false
	}

	a.endAttempt(false)
	s.queue.GoOn(a.item, s.now)
	s.nominations.setNomination(&a.Attempt, a.item, nil)
	return true
}

// handleNoFit handles a pod that fits on no node: it runs PostFilter, then requeues the pod. The
// failure is recorded for the pods of the same class only after PostFilter has run, because the
// nomination by PostFilter is part of the outcome.
func (s *attempts) handleNoFit(a *podAttempt) {
	failure := a.profile.Diagnose(a.Waiting)
	var nominate *string
	var messages, more []string
	// As upstream, PostFilter is not run in an empty cluster.
	if failure.Nodes > 0 {
		s.events.inPostFilter = true // an unbound victim is removed immediately; its event must be recorded before this pod waits
		nominate, messages, more = s.runPostFilters(a)
		s.events.inPostFilter = false
		if s.suspendAttempt(a, a.unasked) {
			return
		}
		if errors.Is(a.unasked, decide.ErrTooLong) {
			s.observer().Decided(s.clock().Sub(a.watch))
			a.endAttempt(false)
			s.requeueFailed(a, a.unasked)
			return
		}
	}
	// As upstream, the nomination is cleared if there are no nodes or no PostFilter plugins, and
	// kept if the pod was rejected before DynamicResources ran.
	switch none := ""; {
	case failure.Nodes == 0, len(a.profile.postFilters) == 0:
		nominate = &none
	case a.item.Resizes(), a.profile.StopsBeforeDevices(failure.Rejector, failure.Rejection):
		nominate = nil
	}
	s.observer().Decided(s.clock().Sub(a.watch))
	a.endAttempt(false)
	rejectors := slices.Clone(failure.Plugins)
	if failure.Rejector != "" {
		rejectors = append(rejectors, failure.Rejector)
	}
	rejectors = gang.WithNames(rejectors, more)
	w := &unschedulableReason{failure.Message(strings.Join(messages, ", ")), rejectors, failure.Pending, failure.Reasons, false}
	s.rememberFailure(a, nominate, w)
	s.requeueUnschedulable(a, w, nominate)
}

// knownToFail reports whether the pod must fail like the last failed pod of its class, because
// nothing has changed since. Of ten thousand replicas that fit nowhere, only the first is decided;
// each further replica costs a comparison.
func (s *attempts) knownToFail(a *podAttempt) bool {
	f := &a.profile.failed
	return f.class == a.item.Class && a.Waiting.Nominated == "" && f.position == s.cluster.Log.Len() &&
		f.versions == s.objectVersions() &&
		(!f.delayed || s.preemptions.mustDelay(a.item)) && !s.leftClaim(a)
}

// rememberFailure records a failure if it holds for every pod of the class. It does not hold if
// pods of a class may differ in an input of the decision. Such inputs are a nomination, ephemeral
// or resource claims per pod, a device claim left by an earlier attempt, and out-of-tree plugins
// and extenders, which read the whole pod.
func (s *attempts) rememberFailure(a *podAttempt, nominate *string, w *unschedulableReason) {
	p, spec := a.profile, a.item.Class.Spec
	if nominate != nil && *nominate != "" || a.Waiting.Nominated != "" || len(p.Outside) > 0 ||
		len(p.Extenders) > 0 || len(spec.ResourceClaims) > 0 ||
		slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.Ephemeral != nil }) || s.leftClaim(a) {
		return
	}
	p.failed = failure{a.item.Class, s.cluster.Log.Len(), s.objectVersions(), w, s.preemptions.mustDelay(a.item)}
}

// leftClaim reports whether the pod must first give up a device claim left by an earlier attempt.
func (s *attempts) leftClaim(a *podAttempt) bool {
	return slices.ContainsFunc(a.profile.Reservers, func(r plugins.Reserver) bool {
		of, ok := r.(plugins.ClaimReserver)
		return ok && of.LeftClaim(s.cluster, a.Waiting)
	})
}

// objectVersions returns a number that changes with every decision-relevant change of an object
// other than a node or pod.
func (s *attempts) objectVersions() uint64 {
	o := &s.cluster.Objects
	return o.Namespaces.Version + o.Services.Version + o.ReplicationControllers.Version + o.ReplicaSets.Version + o.StatefulSets.Version +
		o.Budgets.Version + o.Volumes.Version + o.Claims.Version + o.StorageClasses.Version + o.CSINodes.Version + o.CSIDrivers.Version +
		o.CSICapacities.Version + o.VolumeAttachments.Version + o.ResourceSlices.Version + o.ResourceClaims.Version +
		o.DeviceClasses.Version +
		o.PodGroups.Version
}

// recoverAttempt, deferred by decidePod, ends the attempt of a pod after a panic in its decision: a
// panic caused by one pod must not stop the scheduling of other pods. The pod backs off. All state
// that may be half changed is recomputed: the cluster's sums are recomputed from the pods in the
// API, and the rankings from these sums.
//
// In kube-scheduler a panic in a plugin ends the process.
func (s *attempts) recoverAttempt(a *podAttempt) {
	value := recover()
	if value == nil {
		return
	}
	if s.placements.byPod[a.Pod.UID] != &a.placement { // the panic occurred before the pod was registered in byPod
		s.cluster.RemovePod(a.Pod.UID)
	}
	s.reportPanic(a, value)
	fault := &Fault{Message: fmt.Sprintf("internal error while the pod was decided: %v", value)}
	if a.placement.stage != reserving {
		return // the placement was complete before the panic
	}
	s.placements.takeBack(&a.placement, fault)
}

// reportPanic reports a panic and recomputes all state that may be half changed: the sums over each
// node's pods, and the rankings. Deciders are recreated because their caches may be half filled.
func (s *attempts) reportPanic(a *podAttempt, value any) {
	stack := debug.Stack()
	if elsewhere, ok := value.(interface{ Stack() []byte }); ok {
		stack = elsewhere.Stack()
	}
	s.addAction(Panicked{Reference(a.Pod), fmt.Sprint(value), stack, s.cluster.Recount()})
	for _, name := range slices.Sorted(maps.Keys(s.profiles.byName)) { // in a fixed order, since each decider draws a seed
		p := s.profiles.byName[name]
		p.Decider, p.failed = s.profiles.newDecider(p.Profile.Profile, s.rng.Uint64()), failure{}
	}
	s.events.inPostFilter = false
}

// decideResize decides a deferred resize while the pod is hypothetically off its node. If the
// resize fits, the pod waits for its kubelet; otherwise it may preempt.
func (s *attempts) decideResize(item *queue.Item, answers any, questions int) {
	if why := s.resizeObstacle(item); why != "" {
		a := s.newAttempt(s.profiles.byName[item.Pod.Spec.SchedulerName], item)
		s.parkResize(a, why)
		return
	}
	off := gang.Without(s.cluster)
	off.Remove(s.cluster.Pod(item.Pod.UID))
	// decidePod recovers from panics, after which the pod must be back on its node.
	defer off.RestoreAfter(0)
	s.decidePod(item, answers, questions)
}

// resizeObstacle returns the reason why a deferred resize is not decided now, or "".
func (s *attempts) resizeObstacle(item *queue.Item) string {
	own, n := s.cluster.Pod(item.Pod.UID), s.cluster.Node(item.Pod.Spec.NodeName)
	switch {
	case n == nil || own == nil || own.Node != n:
		return "the pod's node is gone"
	case own.Terminating:
		return "the pod is being deleted"
	case n.Taints.SparesPods:
		return "node had resize preemption disabled"
	case !s.profiles.byName[item.Pod.Spec.SchedulerName].ConfinesResizes():
		return "the profile lacks NodeAffinity, which confines the resize to its node"
	}
	return ""
}

// parkResize makes a deferred resize wait for an event of its node.
func (s *attempts) parkResize(a *podAttempt, why string) {
	s.requeueUnschedulable(a, &unschedulableReason{message: why, plugins: []string{plugins.DeferredResizes}}, nil)
}
