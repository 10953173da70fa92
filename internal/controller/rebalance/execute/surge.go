// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Bounds of a surge.
const (
	surgesFor  = 15 * time.Minute // age after which another run considers a surge's note left behind
	failsFor   = 30 * time.Second // limit for a successor's container that fails to start
	removesFor = 30 * time.Second // limit for the controller to remove the pod after scaling back
	mostSurges = 3                // consecutive surges for the same pod of a drain
	mostLeft   = 100              // notes of deleted pods handled by a run; bounded because anyone can write such labels
	// mostTogether is the maximum number of pods of a surge. The ValidatingAdmissionPolicy has the
	// same one.
	mostTogether = 10
)

// surgeNote is the value of a workload's label while it has an additional replica. It is written in
// the same request as the scale, and removed in the same request that restores the scale. It
// therefore contains everything needed to undo the surge.
//
//	berth.dev/surge=3_0c1b..._1760000000      original replicas, UID of the pod to remove, start time
//	berth.dev/surge=3_0c1b..._1760000000_2    the same, with two more pods to remove
//
// The note fits a label value, which is limited to 63 characters; a UID has 36.
type surgeNote struct {
	replicas int32 // replicas before the surge
	pod      types.UID
	begun    int64 // Unix time
	more     int32 // pods to remove in addition to pod
}

// String returns the label's value, parsed by readNote.
func (n surgeNote) String() string {
	text := fmt.Sprintf("%d_%s_%d", n.replicas, n.pod, n.begun)
	if n.more > 0 {
		text += fmt.Sprintf("_%d", n.more)
	}
	return text
}

// raised returns the replicas during the surge.
func (n surgeNote) raised() int32 { return n.replicas + 1 + n.more }

// readNote parses a label's value; ok is false for values not written by Berth. The scale is then
// left unchanged.
func readNote(text string) (n surgeNote, ok bool) {
	parts := strings.Split(text, "_")
	if len(parts) == 3 {
		parts = append(parts, "0")
	}
	if len(parts) != 4 {
		return n, false
	}
	replicas, err := strconv.ParseInt(parts[0], 10, 32)
	begun, err2 := strconv.ParseInt(parts[2], 10, 64)
	more, err3 := strconv.ParseInt(parts[3], 10, 32)
	return surgeNote{int32(replicas), types.UID(parts[1]), begun, int32(more)},
		errors.Join(err, err2, err3) == nil && more >= 0 && more < mostTogether
}

// surgeStep is the state of a surge. The comments name the object that a step changes or waits for.
//
//	raising -> marking -> growing -> lowering -> removing -> restored                all pods ready
//	                              \-> leaving -> lowering -> removing -> restored    another pod is not ready
//	given up: [sparing ->] lowering -> [yielding -> clearing ->] restored
//	          or clearing -> lowering -> restored
type surgeStep int

const (
	raising  surgeStep = iota // the scale, raised by one
	marking                   // the pod's deletion cost, so that the controller will remove this pod
	growing                   // the successor, until it is ready
	leaving                   // the pod's eviction, because the controller would remove another pod
	lowering                  // the scale, restored
	removing                  // the pod, until the controller has removed it
	sparing                   // the pod's deletion cost, so that this pod stays: the surge is given up
	yielding                  // another pod, until the controller has removed it
	clearing                  // the original deletion cost, because the surge is given up
	restored                  // nothing
)

// surge removes a pod after its successor is ready. It scales the workload up by one, sets the
// lowest deletion cost on the pod, and restores the scale, so that the controller removes this pod.
// It sets the cost while the successor starts, because that takes no additional time.
// Several pods of a workload may be removed together, with as many successors. This does not use
// the eviction API: the number of ready pods never falls below the initial one, and budgets are
// checked before the scale is restored. If another pod of the workload is not ready, the controller
// would remove that other pod regardless of costs; then the surge evicts its pod, subject to
// budgets. If a surge is given up while all pods are ready, its pod first gets the highest cost,
// because the controller may remove any of several equal pods.
type surge struct {
	*departure              // the pod
	also       []*departure // the pods removed together with it
	turn       int          // the pod whose request is due, in steps with a request for each pod
	note       surgeNote
	scaled     rebalance.Scaled
	template   *v1.PodTemplateSpec // pod template at the start of the surge; nil if an earlier run began it

	step    surgeStep
	since   time.Time // start of the step
	looks   time.Time // time of the next look of a step that waits; zero if it is due
	marked  bool      // the pods may have the lowest or highest deletion cost
	back    bool      // the scale was restored
	foreign bool      // the pod no longer exists: the scale is restored, but nothing waits for it
	// final and outdated describe a surge that was given up, and determine the policy's handling of
	// the pod.
	final    bool // another attempt would not help
	outdated bool // the plan was outdated; an attempt with another plan may help
	// why is "" for a successful surge. giveUp sets it before the scale is restored.
	why      string // reason for giving up the surge
	reported string // the last reported cause of waiting
}

// surges holds the departures of a mover with a surge. The policy calls follow after each change
// that may advance a surge.
type surges struct {
	*mover
	list []*surge
	// expires is the time at which the oldest note of another run counts as left behind. It is set
	// by recover, and is zero without such a note.
	expires time.Time
}

// all returns the pods of the surge.
func (s *surge) all() []*departure { return append([]*departure{s.departure}, s.also...) }

// removes reports whether the surge removes a pod.
func (s *surge) removes(uid types.UID) bool {
	return s.UID == uid || slices.ContainsFunc(s.also, func(p *departure) bool { return p.UID == uid })
}

// waits reports whether the surge waits for the cluster, and has no request to make.
func (s *surge) waits() bool { return s.step == growing || s.step == removing || s.step == yielding }

// surgeOf returns the surge of a pod, or of its workload. A workload has at most one surge at a
// time: with two surges, the pods' successors and the original scale would be ambiguous.
func (ss *surges) surgeOf(p *v1.Pod) *surge {
	for _, s := range ss.list {
		if s.UID == p.UID || s.owner == rules.OwnerOf(p) {
			return s
		}
	}
	return nil
}

// places reports whether a surge of the departure still waits for its successor to be scheduled.
// Until then, the room of the successor must stay reserved.
func (ss *surges) places(p *departure) bool {
	return slices.ContainsFunc(ss.list, func(s *surge) bool { return s.departure == p && s.step <= growing && !p.placed })
}

// begin adds a replica for each of the pods to their workload. The pods must exist, and their
// workload must not have another surge. The first request is made immediately, or after a pause if
// the workload has just been scaled without success.
func (ss *surges) begin(p *departure, also ...*departure) {
	s := &surge{
		departure: p, also: also, scaled: p.Surge.Scaled, template: templateOf(ss.cluster.scaled(p.Surge.Scaled)), since: ss.now,
		note: surgeNote{p.Surge.Replicas, p.UID, ss.wall().Unix(), int32(len(also))},
	}
	ss.list = append(ss.list, s)
	if s.retry = ss.nextFor(s.scaled.UID); ss.now.Before(s.retry) {
		ss.wake(s.retry)
		return
	}
	ss.request(s)
}

// request issues the request of the current step. All of these requests are idempotent: their
// effects are visible in the label, the annotations or the pod's UID.
func (ss *surges) request(s *surge) {
	s.ticket = ss.nextTicket()
	change := Scale{Ticket: s.ticket, Target: s.scaled, From: s.note.replicas, To: s.note.raised(), After: s.note.String()}
	p := s.all()[s.turn]
	switch s.step {
	case raising:
		ss.paced(s.scaled.UID)
		change.Reservations = ss.keepRoom(s.departure)
		ss.addAction(change)
	case marking, sparing, clearing:
		ss.addAction(Mark{Ticket: s.ticket, Namespace: p.Namespace, Name: p.Name, UID: p.UID,
			Clear: s.step == clearing, Keep: s.step == sparing})
	case leaving:
		ss.addAction(Evict{Ticket: s.ticket, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Grace: p.grace, Direct: true})
	case lowering:
		// The request that restores the scale also removes the note. If the scale has since been
		// changed by another client, only the note is removed.
		change.From, change.To, change.Before, change.After = change.To, change.From, change.After, ""
		ss.addAction(change)
	}
}

// enter begins a step. Its request is due immediately.
func (s *surge) enter(step surgeStep, now time.Time) {
	s.step, s.since, s.looks, s.turn, s.attempt = step, now, time.Time{}, 0, attempt{retry: now}
}

// giveUp restores the scale without removing the pod.
//
// The steps to undo depend on the progress of the surge. If all pods are ready, the controller may
// remove any of them, including the victim, so the victim is first marked to be kept. If another
// pod is not ready, the controller removes that pod first anyway.
func (ss *surges) giveUp(s *surge, why string) {
	s.why = why
	object := ss.cluster.scaled(s.scaled)
	victim := ss.victim(s.departure)
	raised := object != nil && object.GetLabels()[rebalance.SurgeLabel] == s.note.String() && replicasOf(object) == s.note.raised()
	switch {
	case raised && victim != nil && victim.DeletionTimestamp == nil && ss.cluster.whole(s.owner):
		s.marked = true
		s.enter(sparing, ss.now)
	case s.marked:
		s.enter(clearing, ss.now)
	default:
		s.enter(lowering, ss.now)
	}
}

// answered handles the response to a surge's request, and reports whether the response belongs to a
// surge.
func (ss *surges) answered(e Answered) bool {
	i := slices.IndexFunc(ss.list, func(s *surge) bool { return s.ticket != 0 && s.ticket == e.Ticket })
	if i >= 0 {
		ss.list[i].ticket = 0
		ss.takeAnswer(ss.list[i], e)
	}
	return i >= 0
}

// takeAnswer handles the response to the request of the surge's step. Outcomes not listed are
// retried after a pause.
func (ss *surges) takeAnswer(s *surge, e Answered) {
	switch fails := e.Outcome == response.Refused || ss.now.Sub(s.since) >= refusedFor; {
	case e.Outcome == response.OK:
		ss.requested(s)
	case e.Outcome == response.Gone && s.step == sparing:
		s.marked = len(s.also) > 0
		ss.requested(s)
	// The mark only improves the odds: the scale is restored even without it.
	case s.step == sparing && fails:
		s.enter(clearing, ss.now)
	case e.Outcome == response.Gone && s.step >= marking:
		ss.requested(s) // the pod has left by itself, or there is nothing to restore
	// The plan is outdated. A proxy that repeated the request may have caused the conflict, so the
	// scale may have been raised.
	case s.step == raising && (e.Outcome == response.Conflict || e.Outcome == response.Gone):
		s.why, s.outdated = fmt.Sprintf("%s has changed", s.scaled), true
		s.enter(lowering, ss.now)
	case s.step == raising && e.Outcome == response.Refused:
		s.why, s.final = fmt.Sprintf("%s cannot be scaled: %s", s.scaled, e.Message), true
		s.enter(restored, ss.now)
	// giveUp reads from the label whether the scale was raised.
	case s.step == raising && fails: // the scale may have been raised
		ss.giveUp(s, fmt.Sprintf("%s cannot be scaled: %s", s.scaled, e.Message))
	case s.step == marking && fails:
		ss.giveUp(s, "its deletion cost cannot be set: "+e.Message)
	// A budget that refuses for so long may do so forever.
	case s.step == leaving && fails:
		ss.giveUp(s, "it cannot be evicted: "+e.Message)
	// A leftover annotation does less harm than a leftover scale.
	case s.step == clearing && fails:
		s.marked = false
		s.enter(lowering, ss.now)
	// The label stays, so a later run retries. Scaling a ReplicaSet is refused every time if its
	// owner cannot be scaled.
	case s.step == lowering && fails:
		s.why = fmt.Sprintf("%s cannot be scaled back: %s", s.scaled, e.Message)
		s.enter(restored, ss.now)
	default:
		s.again(ss.now, e.RetryAfter)
	}
}

// requested continues after a successful request, or if the object is missing and there is nothing
// to undo.
func (ss *surges) requested(s *surge) {
	switch s.step {
	case marking, sparing, leaving, clearing:
		if s.turn < len(s.also) {
			s.turn, s.attempt = s.turn+1, attempt{retry: ss.now}
			return
		}
	}
	switch s.step {
	case raising:
		delete(ss.paces, s.scaled.UID)
		s.marked = true
		s.enter(marking, ss.now)
		for _, p := range s.all() {
			ss.policy.report(p, Raised, "", fmt.Sprintf("%s has %d replicas for the time being", s.scaled, s.note.raised()))
		}

	case marking:
		s.enter(growing, ss.now)

	case sparing, leaving:
		s.enter(lowering, ss.now)

	case clearing:
		s.marked = false
		if s.back {
			s.enter(restored, ss.now)
			return
		}
		s.enter(lowering, ss.now)

	// The workload has its original number of replicas again. If the surge was given up, the victim
	// may still be marked.
	case lowering:
		s.back = true
		switch {
		case s.why == "":
			s.enter(removing, ss.now)
		case s.marked:
			s.enter(yielding, ss.now)
		default:
			s.enter(restored, ss.now)
		}
	}
}

// follow advances the surges. With a reason to stop, it gives up the surges that still wait for
// their successors.
//
// A surge in a later step is completed, because that takes only a moment.
func (ss *surges) follow(stopped string) {
	for _, s := range ss.list {
		switch {
		case s.ticket != 0 || s.step == restored:
		case s.step == growing && stopped != "":
			ss.giveUp(s, strings.TrimSuffix(stopped+": "+s.reported, ": "))
		case s.waits():
			ss.look(s)
		}
		if s.ticket == 0 && !s.waits() && s.step != restored {
			if ss.now.Before(s.retry) {
				ss.wake(s.retry)
				continue
			}
			ss.request(s)
		}
	}

	// surgeEnded must not begin another surge, because the list is being replaced.
	ss.list = slices.DeleteFunc(ss.list, func(s *surge) bool {
		if s.step != restored {
			return false
		}
		for _, p := range s.all() {
			if s.why != "" && !p.ended {
				ss.policy.report(p, Restored, "", s.why)
			}
		}
		ss.policy.surgeEnded(s)
		return true
	})
}

// scaledOf identifies a scalable object. A ReplicaSet of a Deployment is excluded, because the
// Deployment would revert its scale.
func scaledOf(object metav1.Object) (s rebalance.Scaled, ok bool) {
	s = rebalance.Scaled{Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID()}
	switch object.(type) {
	case *appsv1.Deployment:
		s.Kind = "Deployment"
	case *appsv1.ReplicaSet:
		if s.Through = rebalance.ThroughOf(object); s.Through != nil || metav1.GetControllerOfNoCopy(object) == nil {
			s.Kind = "ReplicaSet"
		}
	}
	return s, s.Kind != ""
}

// templateOf returns the pod template of a scaled object, or nil. A template that differs from the
// initial one indicates a rollout.
func templateOf(object metav1.Object) *v1.PodTemplateSpec {
	if l := workload.Of(object); l != nil {
		return l.Template
	}
	return nil
}

// replicasOf returns spec.replicas of a scaled object, with the API server's default of 1.
func replicasOf(object metav1.Object) int32 { return ptr.Deref(*workload.ReplicasOf(object), 1) }
