// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/pacing"
)

// This file holds the state of a pod from its attempt to its binding. The stages are in reserve.go,
// permit.go, prepare.go and bind.go; stop.go ends them early.

// podAttempt is one try to find a node for a pod, and what remains of it until the pod is bound.
type podAttempt struct {
	Attempt
	profile *servedProfile // the profile at the time of the decision; Configured may have replaced it since
	item    *queue.Item    // its place is queue.Taken, unless it was removed from the queue
	began   time.Time      // time of the decision, by the clock of the core
	watch   time.Time      // time of the decision by Options.Stopwatch, only for measuring durations

	questions int             // asynchronous questions issued in this attempt
	unasked   error           // error of PostFilter; a *plugins.PendingQuery only suspends the attempt until the query is answered
	victims   []decision.Name // pods preempted for this pod
	// sibling: the pod is being decided together with its group, so its removal must not be treated
	// as the group's loss of a member.
	sibling bool
	// placement is used once a node is chosen. It is a part of the attempt to save an allocation.
	placement placement
}

// endAttempt notifies out-of-tree plugins that an attempt is over. A failed attempt is over once
// its reservations have been released.
func (a *podAttempt) endAttempt(bound bool) {
	for _, e := range a.profile.end {
		e.End(&a.Attempt, bound)
	}
}

// startTiming returns a function to call when the plugin returns. Only plugins of sampled attempts
// are timed: timing costs as much as a cheap plugin.
func (s *common) startTiming(a *podAttempt, plugin string, point plugins.Point) func(ok bool) {
	if !a.Sampled {
		return func(bool) {}
	}
	began := s.clock()
	return func(ok bool) { s.observer().RanPlugin(plugin, point, ok, s.clock().Sub(began)) }
}

// placement is a pod on its way from the decision to its binding. It begins when an attempt has
// chosen a node. From assumePod until uncountPod or confirmBound it is in placements.byPod, and its
// pod is counted on the node. It ends in exactly one of three ways: takeBack (the pod returns to
// the queue), dropPlacement (the pod was deleted or bound by another client), or finishBound. Only
// the core reads and changes it; actions carry only the embedded Attempt.
type placement struct {
	*podAttempt

	undo  []func() // functions that release the reservations of Berth's own plugins, called in reverse order
	asked bool     // out-of-tree Reserve plugins were called, so Unreserve must be called

	stage   stage
	permit  *permitHold // the wait at Permit; nil unless the pod is held
	prepare preparation // used while stage is preparing
	binding Ticket      // ticket of the Bind action, while stage is binding

	// ending, once set, is the reason why the pod will not be bound after all. Outstanding work is
	// cancelled, and its last outcome ends the placement.
	ending *Fault
	// dropped: a watch showed the pod deleted or running elsewhere. The placement only needs to
	// release its reservations.
	dropped bool
	// confirmed: a watch showed the pod on its node before the outcome of the Bind arrived.
	confirmed bool
	// victimIsOver, for a pod chosen as a victim, is called after its binding is over or its
	// preparation has failed.
	victimIsOver func()
	// overdue: no watch had confirmed the successful Bind by the previous flush.
	overdue bool

	own     []ownWork // reservations of Berth's own plugins, still to be written
	volumes plugins.PodVolumes
	devices deviceWork
}

// tellPreemptor continues with a victim.
func (b *placement) tellPreemptor() {
	if b.victimIsOver != nil {
		b.victimIsOver()
	}
}

// stage is the progress of a placement.
type stage uint8

const (
	// A placement passes through the stages in this order. The stage determines the way to cancel
	// the placement. A reserving placement is undone immediately. For a preparing placement, a
	// Cancel is issued for each outstanding action. The Cancel of a binding placement succeeds only
	// if the Bind has not begun. A bound placement cannot be cancelled.
	reserving stage = iota // decided in this step, reservations in progress
	preparing              // held at Permit, or PreBind is in progress
	binding                // a Bind action is in progress
	bound                  // the Bind has succeeded, but no watch has confirmed it yet
	ended                  // the placement is over without a bound pod, and nothing is left to cancel
)

// permitHold is a pod's wait at Permit.
type permitHold struct {
	ticket  Ticket
	since   time.Time
	pending map[string]wait // waits by plugin, without the plugins that allowed the pod; empty once the wait is over
	verdict *rejection      // a plugin's verdict, if it rejected the pod
	over    bool

	preempted bool // a plugin preempted the pod, without a verdict
}

// wait is one plugin's wait: its maximum duration, and the resulting deadline.
type wait struct {
	most  time.Duration
	until time.Time
}

// nextTimeout returns the earliest deadline among the waits of the plugins, or the zero time if no
// plugin waits.
func (p *permitHold) nextTimeout() (at time.Time) {
	for _, w := range p.pending {
		at = pacing.Sooner(at, w.until)
	}
	return at
}

// preparation is the work before a pod is bound, in this order: Preflight, Permit, then the PreBind
// plugins in groups. The plugins of a group run at the same time, the groups one after the other.
type preparation struct {
	groups  [][]string        // plugins with work to do, by group
	running map[Ticket]string // plugins at work, by the ticket of their action
	waiting int               // number of plugins whose objects are written but not ready yet
	began   time.Time         // start of the first group
}

// nominateStep replaces a plugin's name in preparation.running for the write of the nomination.
const nominateStep = "-"

// ownWork is a reservation by one of Berth's own plugins for a pod, to be written to the API before
// the pod is bound. It may be written concurrently with the work of other plugins.
type ownWork struct {
	plugin string
	write  func(b *placement, ticket Ticket) Action
	// written, if set, handles the outcome, whatever it is.
	written func(ps *placements, b *placement, o Outcome)
	next    waitFor
	failed  func(ps *placements) // if set, counts a failure to write the reservation or to wait for it
}

// placements takes pods from the decision to the binding: it counts them on their nodes, reserves
// their resources, waits at Permit, issues the actions that write objects, and binds the pods.
//
// There is at most one placement per pod. A pod in byPod is counted on its node, except while
// assumePod is running. A placement in held is also in byPod, or is about to end. A panic in a
// plugin ends the attempt (see recoverAttempt), so every step records its reservation before
// proceeding.
type placements struct {
	*common
	events      *clusterEvents
	nominations *nominations
	claims      *sharedClaims
	conditions  objectWaits
	listener    placementListener

	byPod map[types.UID]*placement
	most  int                   // largest length of byPod; see cluster.Shrunk
	held  map[Ticket]*placement // placements waiting at Permit, by the ticket of their Hold
}

// objectWaits holds the placements' waits for the cluster's objects, in the order in which the
// waits began. A change of an object that a wait may depend on causes a check of all waits; see
// clusterEvents.objects. A list suffices because few waits exist at a time.
type objectWaits []*objectWait

// objectWait is one wait. The wait is over when the plugin's objects are in the state required by
// the placement.
type objectWait struct {
	*placement
	waitFor
	plugin          string
	began, deadline time.Time
}

// waitFor describes what a placement waits for; an objectWait is one such wait.
type waitFor struct {
	late   string                         // message of the error if the wait is not over by the deadline
	needed func(b *placement) bool        // whether the placement needs the wait; nil: always
	event  func(b *placement) RecordEvent // event recorded at the start of the wait; nil: none
	within func(b *placement) time.Duration
	met    func(c *cluster.Cluster, b *placement) (bool, error)
	// over, if set, reports the result of the wait: success, failure, timeout or error.
	over func(ps *placements, b *placement, how string, took time.Duration)
}

// placementListener is called when a placement or its binding ends. It is implemented by the type
// attempts, on which placements must not depend.
type placementListener interface {
	// requeuePlacement: the pod is not bound, and returns to the queue.
	requeuePlacement(b *placement, why error)
	// noteBound: the pod is bound.
	noteBound(b *placement)
}

// enter registers the placement of a pod just placed in the cluster model; leave undoes enter.
// Neither changes the model.
func (ps *placements) enter(b *placement) {
	ps.byPod[b.Pod.UID] = b
	ps.byPod = cluster.Shrunk(ps.byPod, &ps.most)
}

// rejection is an error carrying a plugin's verdict: the pod is unschedulable, and waits for the
// events registered by this plugin.
type rejection struct {
	plugin string
	*plugins.Rejection
}

// Error formats the verdict as if the cluster had one node: "0/1 nodes are available: ...", like
// upstream's message for a pod rejected after its node was chosen.
func (r *rejection) Error() string {
	if r.Err != nil {
		return r.Err.Error()
	}
	f := decide.Failure{Nodes: 1, Reasons: map[string]int{}}
	for _, reason := range r.Reasons {
		f.Reasons[reason]++
	}
	return f.Message("")
}

// RefusedBy implements gang.Refusal: only this node is rejected, and the pod may fit on another
// node.
func (r *rejection) RefusedBy() (plugin string) { return r.plugin }
