// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file implements the attempt for a single pod, from the queue to a placement or back to the
// queue. startAttempt receives a popped pod, Decider.Decide searches for a node, and PostFilter
// runs if no node fits. The steps after choosing a node are in assume.go; attempts for whole groups
// are in decidegroup.go.

// startAttempt starts an attempt for a popped pod.
func (s *attempts) startAttempt(item *queue.Item) {
	s.moveReservations.useReservation(item)
	s.decidePod(item, nil, 0)
}

// decidePod decides one pod. When an attempt continues after asynchronous questions, answers holds
// their results, and questions is their number.
func (s *attempts) decidePod(item *queue.Item, answers any, questions int) {
	p := s.profiles.byName[item.Pod.Spec.SchedulerName]
	s.ungrouped(item)
	b := s.newPlacement(p, item)
	b.Async, b.Answers, b.questions = true, answers, questions
	defer s.recoverAttempt(b)
	// A recorded failure does not apply to a pod allowed into reserved room, since the pod that
	// failed may not have been allowed there.
	let := s.reserved.lets(item)
	if !let && s.knownToFail(b) {
		s.requeueUnschedulable(b, p.failed.why, nil)
		return
	}

	// This precedes Begin, so that an attempt suspended here has not called a stateful plugin.
	if s.startPreparing(b) {
		return
	}
	for _, e := range p.begin {
		e.Begin(&b.Attempt)
	}

	found := p.Decide(b.Waiting)
	if found.Node == nil && found.Err == nil && let {
		found = s.decideOntoHeld(b)
	}

	switch {
	case s.suspendAttempt(b, found.Err), s.goOnLater(b, found.Err):
	case found.Err != nil:
		if f := (*decide.FilterError)(nil); errors.As(found.Err, &f) && p.bindsVolumes(f.Plugin) {
			s.observer().VolumesFailed("predicate")
		}
		s.observer().Decided(s.clock().Sub(b.watch))
		b.endAttempt(false)
		s.requeueFailed(b, found.Err)
	case found.Node == nil:
		s.handleNoFit(b)
	default:
		s.observer().Decided(s.clock().Sub(b.watch))
		s.decisions.rememberPlaced(b, found.Node.Name, found.Total, found.Feasible)
		s.placements.assumePod(b, found.Node)
	}
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
func (s *attempts) goOnLater(b *placement, err error) bool {
	var unfinished *plugins.Unfinished
	if !errors.As(err, &unfinished) || unfinished.Found < farEnough || b.item.Continued >= mostContinued {
		return false
	}

	b.endAttempt(false)
	s.queue.GoOn(b.item, s.now)
	s.nominations.setNomination(&b.Attempt, b.item, nil)
	return true
}

// decideOntoHeld decides a pod allowed into room held for a pod group. It is called only if the pod
// fits nowhere else.
func (s *attempts) decideOntoHeld(b *placement) decide.Decision {
	nominees := s.reserved.lift()
	defer s.reserved.putBack(nominees)
	return b.profile.Decide(b.Waiting)
}

// handleNoFit handles a pod that fits on no node: it runs PostFilter, then requeues the pod. The
// failure is recorded for the pods of the same class only after PostFilter has run, because the
// nomination by PostFilter is part of the outcome.
func (s *attempts) handleNoFit(b *placement) {
	failure := b.profile.Diagnose(b.Waiting)
	var nominate *string
	var messages, more []string
	// As upstream, PostFilter is not run in an empty cluster.
	if failure.Nodes > 0 {
		s.events.inPostFilter = true // an unbound victim is removed immediately; its event must be recorded before this pod waits
		nominate, messages, more, _ = s.runPostFilters(b, b.profile.postFilters)
		s.events.inPostFilter = false
		if s.suspendAttempt(b, b.unasked) {
			return
		}
		if errors.Is(b.unasked, decide.ErrTooLong) {
			s.observer().Decided(s.clock().Sub(b.watch))
			b.endAttempt(false)
			s.requeueFailed(b, b.unasked)
			return
		}
	}
	// As upstream, the nomination is cleared if there are no nodes or no PostFilter plugins, and
	// kept if the pod was rejected before DynamicResources ran.
	switch none := ""; {
	case failure.Nodes == 0, len(b.profile.postFilters) == 0:
		nominate = &none
	case b.profile.StopsBeforeDevices(failure.Rejector, failure.Rejection):
		nominate = nil
	}
	s.observer().Decided(s.clock().Sub(b.watch))
	b.endAttempt(false)
	rejectors := slices.Clone(failure.Plugins)
	if failure.Rejector != "" {
		rejectors = append(rejectors, failure.Rejector)
	}
	rejectors = gang.WithNames(rejectors, more)
	w := &unschedulableReason{failure.Message(strings.Join(messages, ", ")), rejectors, failure.Pending, failure.Reasons}
	s.rememberFailure(b, nominate, w)
	s.requeueUnschedulable(b, w, nominate)
}

// runPostFilters runs PostFilter plugins in order until one is final. If one fails, the nominations
// of earlier plugins are discarded, and the pod keeps its previous nomination.
func (s *attempts) runPostFilters(b *placement, by []postFilter) (nominate *string, messages, rejectors []string, final bool) {
	began := s.clock()
	helped := false
	for _, rescue := range by {
		done := s.startTiming(b, rescue.plugin, plugins.PostFilter)
		r := s.runPostFilter(&rescue, b)
		done(r.Nominate != nil && *r.Nominate != "")
		if r.Nominate != nil {
			nominate = r.Nominate
		}
		rejectors = append(rejectors, r.Rejectors...)
		switch {
		case r.Err != nil:
			b.unasked = r.Err
			return nil, []string{r.Err.Error()}, rejectors, true
		case r.Final:
			helped = r.Nominate != nil && *r.Nominate != ""
			messages = nil
			if r.Message != "" {
				messages = []string{r.Message}
			}
		case r.Message != "":
			messages = append(messages, r.Message)
		}
		if final = r.Final; final {
			break
		}
	}

	if len(by) > 0 {
		s.observer().Ran(b.Profile, plugins.PostFilter, helped, s.clock().Sub(began))
	}
	return nominate, messages, rejectors, final
}

// runPostFilter runs one plugin. An out-of-tree plugin takes precedence over Berth's own plugin
// with the same name.
func (s *attempts) runPostFilter(by *postFilter, b *placement) PostFilterResult {
	switch {
	case by.outOfTree != nil:
		return by.outOfTree.RunPostFilter(&b.Attempt, func() *decide.Evaluation { return b.profile.Plain().Evaluate(b.Waiting) })
	case by.releaser != nil:
		return s.giveBackDevices(b, by.releaser)
	}
	return s.preemptions.preemptFor(b)
}

// deallocateHandler handles the outcome of a DeallocateClaim.
type deallocateHandler struct {
	attempts *attempts
	pod      types.UID
	group    releaseHandler // handles the release, if the claim was reserved for the pod's group
}

// handleOutcome retries the pod after its back-off if the devices could not be released, because
// the change that would wake the pod will not happen.
func (e deallocateHandler) handleOutcome(o Outcome) {
	if e.group.l != nil {
		e.group.handleOutcome(o)
	}
	if o.Fault != nil {
		e.attempts.queue.Retry(e.pod, queue.ForceActivate, e.attempts.now)
	}
}

// giveBackDevices runs a plugin's PostFilter, which releases the devices of a claim that the pod
// cannot use.
func (s *attempts) giveBackDevices(b *placement, plugin plugins.ClaimReleaser) PostFilterResult {
	message, change, remove := plugin.PostFilter(s.cluster, b.Waiting, s.placements.isUnused(b))
	if change != nil {
		errand := deallocateHandler{attempts: s, pod: b.Pod.UID}
		if claim, ok := s.cluster.ResourceClaims.Get(change.Namespace, change.Name); ok && !remove {
			if group, ok := plugins.GroupOf(claim); ok {
				claims := s.placements.claims
				errand.group, claims.releasing[nameOf(claim)] = releaseHandler{claims, nameOf(claim)}, group.UID
			}
		}
		s.addAction(DeallocateClaim{s.issueHandled(errand), change, remove})
	}
	return PostFilterResult{Message: message}
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

// handleOutcome continues the attempt regardless of the outcome, because decidePod finds errors in
// the answers.
func (e askHandler) handleOutcome(Outcome) {
	e.attempts.asking--
	e.resumeAttempt()
}

// resumeAttempt decides the pod again, unless the pod or its profile was deleted. The new attempt
// starts from the beginning, and uses the answers received so far.
func (e askHandler) resumeAttempt() {
	if e.attempts.queue.Get(e.item.Pod.UID) == e.item && e.attempts.profiles.byName[e.item.Pod.Spec.SchedulerName] != nil {
		e.attempts.decidePod(e.item, e.question.Answers, e.questions)
	}
}

// handleOutcome passes the prepared result to the plugin, and then begins the attempt.
func (e prepareHandler) handleOutcome(Outcome) {
	if e.attempts.preparing[e.namespace]--; e.attempts.preparing[e.namespace] == 0 {
		delete(e.attempts.preparing, e.namespace)
	}
	e.question.Done()
	e.resumeAttempt()
}
