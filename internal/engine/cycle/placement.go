// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"maps"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// placement is a pod on its way from the queue to its node. From assumePod until uncountPod or
// confirmBound it is in placements.byPod and its pod counts on the node. It ends in exactly one of
// three ways: takeBack (the pod returns to the queue), dropPlacement (the pod was deleted), or
// finishBound. It belongs to the core. Only the embedded Attempt is handed out, with actions.
type placement struct {
	Attempt
	profile *servedProfile // as of the decision; Configured may have replaced it since
	item    *queue.Item    // Taken, or no longer in the queue
	began   time.Time      // by the clock of the core
	watch   time.Time      // by the stopwatch

	questions int   // asked aside so far in this attempt
	unasked   error // a PostFilter plugin's error; it may be a query to run asynchronously

	undo    []func()        // gives back what Berth's own plugins reserved, in reverse order
	asked   bool            // out-of-tree Reserve plugins were called, so Unreserve must also be
	victims []decision.Name // pods preempted for it

	stage   stage
	permit  *permitHold // while it is held
	prepare preparation // while stage is preparing
	binding Ticket      // of its Bind action, while stage is binding

	// ending, once set, is the reason why the pod will not be bound after all. Outstanding work is
	// cancelled, and its last outcome ends the placement.
	ending *Fault
	// dropped: a watch showed the pod deleted or running elsewhere. The placement only needs to
	// release its reservations.
	dropped bool
	// confirmed: a watch showed the pod on its node before the outcome of the Bind arrived.
	confirmed bool
	// sibling: the pod is being decided together with its group, so its removal must not count as
	// the group losing a member.
	sibling bool

	own     []ownWork // reservations of Berth's own plugins, still to be written
	volumes plugins.PodVolumes
	devices deviceWork
}

// stage is the progress of a placement.
type stage uint8

const (
	// Stages follow each other in this order, and determine the possible cancellation: in reserving
	// everything is undone immediately, in preparing a Cancel is issued for each outstanding
	// action, in binding cancellation succeeds only if the Bind has not begun, in bound it is
	// impossible.
	reserving stage = iota // decided in this step, reservations in progress
	preparing              // held at Permit, or PreBind is in progress
	binding                // a Bind action is in progress
	bound                  // the binding is over; a watch has yet to confirm it
)

// placements takes pods from the decision to the binding: it counts them on their nodes, reserves
// their resources, waits at Permit, has objects written, and binds.
//
// There is at most one placement per pod. A pod in byPod counts on its node, except between the
// steps of assumePod itself. A placement in held is also in byPod, or is about to end. A panic in a
// plugin ends the attempt (see recoverAttempt), so every step records its reservation before
// proceeding.
type placements struct {
	*common
	events      *clusterEvents
	nominations *nominations
	claims      *sharedClaims
	conditions  objectWaits
	outcome     placementListener

	byPod map[types.UID]*placement
	most  int                   // of byPod; see cluster.Shrunk
	held  map[Ticket]*placement // those waiting at Permit, by the ticket of their Hold
}

// placementListener is called when a placement or its binding ends. It is implemented by attempts,
// on which placements must not depend.
type placementListener interface {
	// requeuePlacement: the pod is not bound, and returns to the queue.
	requeuePlacement(b *placement, why error)
	// noteBound: the pod is bound.
	noteBound(b *placement)
	// bindAnswered: a binding is over, whatever its outcome. It is called after the other two.
	bindAnswered(b *placement)
}

// Reasons for giving up a binding.
var (
	errGone           = &Fault{Message: "the pod was deleted"}
	errBoundElsewhere = &Fault{Message: "the pod was bound by another client"}
	errNodeGone       = &Fault{Message: "the node was removed before the pod was bound to it"}
	errPreempted      = &Fault{Message: "preempted by DefaultPreemption"}
)

// rejection is an error carrying a plugin's verdict: the pod is unschedulable, and waits for the
// events registered by this plugin.
type rejection struct {
	plugin string
	*plugins.Rejection
}

// bindHandler handles the outcome of a Bind. A bound pod stays in byPod until a watch shows it on
// its node. Until then it counts on the node all the same.
type bindHandler struct {
	ps *placements
	b  *placement
}

// permitHold is a pod's wait at Permit.
type permitHold struct {
	ticket  Ticket
	since   time.Time
	pending map[string]wait // by plugin that has not allowed it; empty once the wait is over
	verdict *rejection      // a plugin's verdict, if it rejected the pod
	over    bool
}

// wait is one plugin's wait: its maximum duration, and the resulting deadline.
type wait struct {
	most  time.Duration
	until time.Time
}

// preparation is the work before a pod is bound, in this order: Preflight, Permit, then the PreBind
// plugins in groups. The plugins of a group run at the same time, the groups one after the other.
type preparation struct {
	groups  [][]string        // plugins with work to do, by group
	running map[Ticket]string // plugins at work, by the ticket of their action
	waiting int               // plugins whose objects are written but not ready yet
	began   time.Time         // of the first group
}

// ownWork is a reservation by one of Berth's own plugins for a pod, to be written to the API before
// the pod is bound. It may be written at the same time as the work of other plugins.
type ownWork struct {
	plugin string
	write  func(b *placement, ticket Ticket) Action
	// written, if set, handles the outcome, whatever it is.
	written func(ps *placements, b *placement, o Outcome)
	next    waitFor
	failed  func(ps *placements) // if set, counts that writing it, or waiting for it, has failed
}

// deviceWork holds the writes for a pod's devices required before it is bound.
type deviceWork struct {
	plugins.ReservedClaims
	uses    []claimUse                  // of Claims, in their order; nil once the pod has left them
	written []*resourcev1.ResourceClaim // claims written so far, as the API server returned them
	shared  []*sharedClaim              // of Claims, also once the pod has left them
}

// objectWaits holds the placements' waits for the cluster's objects, in the order of their
// beginning. They are checked after a change of an object they may depend on: see
// clusterEvents.objects. They are few at a time, so a list suffices.
type objectWaits []*objectWait

// objectWait is one wait. It is met when the plugin's objects are in the state required by the
// placement.
type objectWait struct {
	*placement
	waitFor
	plugin          string
	began, deadline time.Time
}

// waitFor is a kind of condition.
type waitFor struct {
	late   string                         // the error if it is not met by the deadline
	needed func(b *placement) bool        // nil: always
	event  func(b *placement) RecordEvent // of the event when the wait begins; nil: none
	within func(b *placement) time.Duration
	met    func(c *cluster.Cluster, b *placement) (bool, error)
	// over, if set, reports the result of the wait: success, failure, timeout or error.
	over func(ps *placements, b *placement, how string, took time.Duration)
}

// newPlacements leaves outcome to be set by assembleCore.
func newPlacements(s *common, news *clusterEvents, n *nominations, l *sharedClaims) *placements {
	return &placements{
		common: s, events: news, nominations: n, claims: l, byPod: map[types.UID]*placement{}, held: map[Ticket]*placement{},
	}
}

// countUnderWay counts the assumed pods: counted on a node, but not shown there by a watch yet.
func (ps *placements) countUnderWay() int { return len(ps.byPod) }

// enter registers the placement of a pod just placed in the cluster model; leave is its
// counterpart, and does not change the model.
func (ps *placements) enter(b *placement) {
	ps.byPod[b.Pod.UID] = b
	ps.byPod = cluster.Shrunk(ps.byPod, &ps.most)
}

func (ps *placements) leave(b *placement) {
	delete(ps.byPod, b.Pod.UID)
	ps.byPod = cluster.Shrunk(ps.byPod, &ps.most)
}

// placementsTo lists the placements to a node, sorted by pod so that the resulting actions have a
// fixed order.
func (ps *placements) placementsTo(node string) (list []*placement) {
	for _, uid := range slices.Sorted(maps.Keys(ps.byPod)) {
		if b := ps.byPod[uid]; b.Node == node {
			list = append(list, b)
		}
	}
	return list
}

// Error words the verdict as for a cluster of one node: "0/1 nodes are available: ...", like
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

// RefusedBy returns the plugin's name: the pod may fit on another node.
func (r *rejection) RefusedBy() (plugin string) { return r.plugin }

// uncountPod takes the pod off the node on which it counts. It does nothing if the pod has another
// placement by now, or none.
func (ps *placements) uncountPod(b *placement) {
	if ps.byPod[b.Pod.UID] != b {
		return
	}
	ps.leave(b)
	if p := ps.cluster.Pod(b.Pod.UID); p != nil { // a copy of what was placed, if the pod was marked as leaving
		n := p.Node
		ps.cluster.RemovePod(b.Pod.UID)
		ps.events.podRemoved(p, n, nil)
	}
}

// cancelBind requests that the binding not be made. Its outcome, which always arrives, ends the
// placement.
func (ps *placements) cancelBind(b *placement, why *Fault) {
	if b.ending == nil {
		b.ending = why
		ps.addAction(Cancel{b.binding, why.Message})
	}
}

// bindPod sends the Bind action. From now on only a Cancel arriving before the Bind begins can stop
// the pod.
func (ps *placements) bindPod(b *placement) {
	b.stage = binding
	b.binding = ps.issueHandled(bindHandler{ps, b})
	ps.addAction(Bind{b.binding, &b.Attempt, &b.profile.Stages})
}

// endAttempt notifies out-of-tree plugins that an attempt is over. A failed attempt is over once
// its reservations have been released.
func (b *placement) endAttempt(bound bool) {
	for _, e := range b.profile.end {
		e.End(&b.Attempt, bound)
	}
}

// startTiming returns a function to call when the plugin returns. Only plugins of sampled attempts
// are timed: timing costs as much as a cheap plugin.
func (s *common) startTiming(b *placement, plugin string, point plugins.Point) func(ok bool) {
	if !b.Sampled {
		return func(bool) {}
	}
	began := s.clock()
	return func(ok bool) { s.observer().RanPlugin(plugin, point, ok, s.clock().Sub(began)) }
}

// nextTimeout returns the deadline of the next plugin's wait, or the zero time once the wait is
// over.
func (p *permitHold) nextTimeout() (at time.Time) {
	for _, w := range p.pending {
		if at.IsZero() || w.until.Before(at) {
			at = w.until
		}
	}
	return at
}
