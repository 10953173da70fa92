package cycle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// placement is a pod on its way from the queue to its node. From assume until forget or confirm it
// is in placements.byPod and its pod counts on the node. It ends in exactly one of three ways:
// takeBack (the pod returns to the queue), drop (the pod is gone), or succeeded.
type placement struct {
	Attempt
	profile *profile
	item    *queue.Item
	began   time.Time // by the clock of the core
	watch   time.Time // by the stopwatch

	questions int   // asked aside so far in this attempt
	unasked   error // a rescuer's error; it may be a question to be asked aside

	undo    []func()        // gives back what Berth's own plugins reserved, in reverse order
	asked   bool            // out-of-tree Reserve plugins were called, so Unreserve must be, too
	victims []decision.Name // pods preempted for it

	stage   stage
	permit  *permit     // while it is held
	prepare preparation // while stage is preparing
	binding Ticket      // of its Bind action, while stage is binding

	// ending, once set, is why the pod will not be bound after all. Work under way is cancelled,
	// and the last answer to it ends the placement.
	ending *Fault
	// dropped: a watch showed that the pod is gone or runs elsewhere. The placement only has to
	// give back what it reserved.
	dropped bool
	// confirmed: a watch showed the pod on its node before the Bind was answered.
	confirmed bool
	// sibling: the pod is being decided together with its group, so its removal must not count as
	// the group losing a member.
	sibling bool

	own     []ownWork // what Berth's own plugins have reserved and is to be written
	volumes plugins.PodVolumes
	devices deviceWork
}

// stage tells how far a placement has got.
type stage uint8

const (
	reserving stage = iota // decided in this step, reservations under way
	preparing              // held at Permit, or PreBind is under way
	binding                // a Bind action is under way
	bound                  // the binding is over; a watch has yet to confirm it
)

// placements takes pods from the decision to the binding: it counts them on their nodes, reserves
// what they need, waits at Permit, has objects written, and binds.
//
// There is at most one placement per pod. A pod in byPod counts on its node, except between the
// steps of assume itself. A placement in held is in byPod too, or is about to end.
type placements struct {
	*common
	news        *happenings
	nominations *nominations
	claims      *sharedClaims
	conditions  conditions
	outcome     aftermath

	byPod map[types.UID]*placement
	most  int                   // of byPod; see cluster.Shrunk
	held  map[Ticket]*placement // those waiting at Permit, by the ticket of their Hold
}

// aftermath is called when a placement or its binding ends.
type aftermath interface {
	// requeuePlacement: the pod is not bound, and returns to the queue.
	requeuePlacement(b *placement, why error)
	// noteBound: the pod is bound.
	noteBound(b *placement)
	// bindAnswered: a binding is over, whatever its outcome. It is called after the other two.
	bindAnswered(b *placement)
}

func newPlacements(s *common, news *happenings, n *nominations, l *sharedClaims) *placements {
	return &placements{
		common: s, news: news, nominations: n, claims: l, byPod: map[types.UID]*placement{}, held: map[Ticket]*placement{},
	}
}

func (ps *placements) len() int { return len(ps.byPod) }

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

// Reasons why a binding is given up.
var (
	errGone           = &Fault{Message: "the pod was deleted"}
	errBoundElsewhere = &Fault{Message: "the pod was bound by another client"}
	errNodeGone       = &Fault{Message: "the node was removed before the pod was bound to it"}
	errPreempted      = &Fault{Message: "preempted by DefaultPreemption"}
)

// rejection is an error that carries a plugin's verdict: the pod is unschedulable, and waits for
// the events that this plugin is interested in.
type rejection struct {
	plugin string
	*plugins.Rejection
}

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

// RefusedBy names the plugin: the pod may do on another node.
func (r *rejection) RefusedBy() (plugin string) { return r.plugin }

// assumePod counts the pod on the node, reserves what it needs beyond room, and starts its binding.
func (ps *placements) assumePod(b *placement, n *cluster.Node) {
	b.Node = n.Name
	if nominated := ps.cluster.Nominated(b.Pod.UID); nominated != nil && nominated.Nominated != n.Name {
		ps.nominations.clearNomination(b.Pod.UID)
	}

	if err := ps.reserveOwn(b, n); err != nil {
		ps.takeBack(b, err)
		return
	}

	ps.cluster.Place(b.Waiting, n)
	ps.enter(b)
	ps.news.podAdded(b.Waiting, nil)
	if err := ps.reserveOutside(b); err != nil {
		ps.takeBack(b, err)
		return
	}

	waits, err := ps.askPermit(b)
	if err != nil {
		ps.takeBack(b, err)
		return
	}

	for _, e := range b.profile.assumed {
		e.Assumed(&b.Attempt)
	}
	ps.startPreparation(b, waits)
}

// reserveOwn runs the Reserve step of Berth's own plugins. What is reserved is in b.undo at once: a
// later plugin may panic.
func (ps *placements) reserveOwn(b *placement, n *cluster.Node) (err error) {
	for _, r := range b.profile.Reservers {
		var give func()
		done := ps.startTiming(b, r.Name(), plugins.Reserve)
		switch r := r.(type) {
		case plugins.VolumeReserver:
			give, err = ps.reserveVolumes(b, r, n)
		case plugins.ClaimReserver:
			give, err = ps.reserveDevices(b, r, n)
		default:
			give, err = r.Reserve(ps.cluster, b.Waiting, n)
		}
		if give != nil {
			b.undo = append(b.undo, give)
		}
		done(err == nil)
		if err != nil {
			return fmt.Errorf("running Reserve plugin %q: %w", r.Name(), err)
		}
	}

	return nil
}

// reserveOutside runs the out-of-tree Reserve plugins.
func (ps *placements) reserveOutside(b *placement) error {
	if len(b.profile.reserve) == 0 {
		return nil
	}
	began := ps.clock()
	b.asked = true

	for _, r := range b.profile.reserve {
		done := ps.startTiming(b, r.Name(), plugins.Reserve)
		refused := r.Reserve(&b.Attempt)
		done(refused == nil)
		if refused != nil {
			ps.observer().Ran(b.Profile, plugins.Reserve, false, ps.clock().Sub(began))
			if refused.Err != nil {
				return fmt.Errorf("running Reserve plugin %q: %w", r.Name(), refused.Err)
			}
			return &rejection{r.Name(), refused}
		}
	}

	ps.observer().Ran(b.Profile, plugins.Reserve, true, ps.clock().Sub(began))
	return nil
}

// giveBack undoes all reservations of a placement.
func (ps *placements) giveBack(b *placement) {
	if b.asked {
		b.asked = false
		for _, r := range slices.Backward(b.profile.reserve) {
			r.Unreserve(&b.Attempt)
		}
	}
	for _, undo := range slices.Backward(b.undo) {
		undo()
	}
	b.undo = nil
}

// releaseReserved gives back all reservations. What was reserved in the same step has kept no other
// pod out, so that it is not worth an event.
func (ps *placements) releaseReserved(b *placement) {
	if b.stage == reserving {
		ps.giveBack(b)
		return
	}
	ps.tellGivenBack(b, ps.giveBack)
}

// uncountPod takes the pod off the node that it was counted on.
func (ps *placements) uncountPod(b *placement) {
	if ps.byPod[b.Pod.UID] != b {
		return
	}
	ps.leave(b)
	if p := ps.cluster.Pod(b.Pod.UID); p != nil { // a copy of what was placed, if the pod was marked as leaving
		n := p.Node
		ps.cluster.RemovePod(b.Pod.UID)
		ps.news.podRemoved(p, n, nil)
	}
}

// takeBack ends a placement that failed; the pod returns to the queue.
func (ps *placements) takeBack(b *placement, err error) {
	ps.releaseReserved(b)
	ps.uncountPod(b)
	b.endAttempt(false)
	ps.outcome.requeuePlacement(b, err)
}

// dropPlacement ends a placement whose pod no longer needs one.
func (ps *placements) dropPlacement(b *placement) {
	ps.releaseReserved(b)
	b.endAttempt(false)
}

// stopBinding stops a binding if it is not too late. The pod returns to the queue, at once or when
// the work under way is answered.
func (ps *placements) stopBinding(b *placement, why *Fault) {
	switch b.stage {
	case preparing:
		ps.stopPreparation(b, why)
	case binding:
		ps.cancelBind(b, why)
	}
}

// cancelBind asks for the binding not to be made. Its answer, which always comes, ends the
// placement.
func (ps *placements) cancelBind(b *placement, why *Fault) {
	if b.ending == nil {
		b.ending = why
		ps.addAction(Cancel{b.binding, why.Message})
	}
}

// abandonPod ends the placement of a pod that was deleted, or bound by another client, and returns
// it; nil if there is none.
func (ps *placements) abandonPod(uid types.UID, why *Fault) *placement {
	b := ps.byPod[uid]
	if b != nil {
		ps.uncountPod(b)
		ps.letGo(b, why)
	}
	return b
}

// letGo ends a placement that is no longer in byPod.
func (ps *placements) letGo(b *placement, why *Fault) {
	b.dropped = true
	ps.stopBinding(b, why)
}

// confirmBound ends a placement whose pod a watch shows on its node.
func (ps *placements) confirmBound(b *placement) {
	ps.leave(b)
	switch b.stage {
	case preparing:
		ps.letGo(b, errBoundElsewhere)
	case binding: // the outstanding answer tells who bound it
		b.confirmed = true
		ps.cancelBind(b, errBoundElsewhere)
	}
}

// bindPod sends the Bind action.
func (ps *placements) bindPod(b *placement) {
	b.stage = binding
	b.binding = ps.issueErrand(bindErrand{ps, b})
	ps.addAction(Bind{b.binding, &b.Attempt, &b.profile.Stages})
}

// bindErrand takes the answer to a Bind. A pod that was bound stays in byPod until a watch shows it
// on its node.
type bindErrand struct {
	ps *placements
	b  *placement
}

func (e bindErrand) handleOutcome(o Outcome) {
	ps, b := e.ps, e.b
	if o.Fault == nil && !o.Withdrawn {
		ps.addAction(Announce{&b.Attempt})
	}
	switch {
	case b.dropped, b.confirmed && o.Withdrawn: // a watch already showed the pod gone or bound by another client, and is right
		b.stage = bound
		ps.dropPlacement(b)
	case b.confirmed:
		ps.finishBound(b)
	case ps.byPod[b.Pod.UID] != b:
	case o.Withdrawn:
		ps.takeBack(b, b.ending)
	case o.Fault != nil:
		ps.takeBack(b, o.Fault)
	default:
		ps.finishBound(b)
	}
	ps.outcome.bindAnswered(b)
}

// finishBound ends the placement of a pod that was bound.
func (ps *placements) finishBound(b *placement) {
	b.stage = bound
	ps.observer().Attempted(b.Profile, Scheduled, ps.clock().Sub(b.watch))
	ps.observer().Bound(b.item.Attempts, ps.now.Sub(b.item.Admitted), b.item.Overdue)
	b.endAttempt(true)
	ps.outcome.noteBound(b)
}

// endAttempt tells out-of-tree plugins that an attempt is over.
func (b *placement) endAttempt(bound bool) {
	for _, e := range b.profile.end {
		e.End(&b.Attempt, bound)
	}
}

// String returns the pod's namespace and name.
func (a *Attempt) String() string {
	if a.Pod == nil {
		return strings.TrimSpace(a.Profile)
	}
	return podName(a.Pod)
}
