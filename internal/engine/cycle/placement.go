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
// three ways: takeBack (the pod returns to the queue), dropPlacement (the pod is gone), or
// finishBound. It belongs to the core. Only the embedded Attempt is handed out, with actions.
type placement struct {
	Attempt
	profile *servedProfile // as of the decision; Configured may have replaced it since
	item    *queue.Item    // Taken, or no longer in the queue
	began   time.Time      // by the clock of the core
	watch   time.Time      // by the stopwatch

	questions int   // asked aside so far in this attempt
	unasked   error // a rescuer's error; it may be a question to be asked aside

	undo    []func()        // gives back what Berth's own plugins reserved, in reverse order
	asked   bool            // out-of-tree Reserve plugins were called, so Unreserve must be, too
	victims []decision.Name // pods preempted for it

	stage   stage
	permit  *permitHold // while it is held
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
	// A stage follows the one before it, and each says what can still be stopped: in reserving
	// everything is undone at once, in preparing by a Cancel of each action under way, in binding
	// only if the Bind has not begun, in bound nothing.
	reserving stage = iota // decided in this step, reservations under way
	preparing              // held at Permit, or PreBind is under way
	binding                // a Bind action is under way
	bound                  // the binding is over; a watch has yet to confirm it
)

// placements takes pods from the decision to the binding: it counts them on their nodes, reserves
// what they need, waits at Permit, has objects written, and binds.
//
// There is at most one placement per pod. A pod in byPod counts on its node, except between the
// steps of assumePod itself. A placement in held is in byPod too, or is about to end. A panic in a
// plugin ends the attempt (see recoverAttempt), so that every step notes what it has reserved
// before it goes on.
type placements struct {
	*common
	news        *happenings
	nominations *nominations
	claims      *sharedClaims
	conditions  objectWaits
	outcome     aftermath

	byPod map[types.UID]*placement
	most  int                   // of byPod; see cluster.Shrunk
	held  map[Ticket]*placement // those waiting at Permit, by the ticket of their Hold
}

// aftermath is called when a placement or its binding ends. It is implemented by attempts, which
// placements may not know.
type aftermath interface {
	// requeuePlacement: the pod is not bound, and returns to the queue.
	requeuePlacement(b *placement, why error)
	// noteBound: the pod is bound.
	noteBound(b *placement)
	// bindAnswered: a binding is over, whatever its outcome. It is called after the other two.
	bindAnswered(b *placement)
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

// bindErrand takes the answer to a Bind. A pod that was bound stays in byPod until a watch shows it
// on its node. Until then it counts on the node all the same.
type bindErrand struct {
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

// wait is one plugin's wait: at most so long, and thus until then.
type wait struct {
	most  time.Duration
	until time.Time
}

// preparation is what must be done before a pod is bound, in this order: Preflight, Permit, then
// the PreBind plugins in groups. The plugins of a group run at the same time, the groups one after
// the other.
type preparation struct {
	groups  [][]string        // plugins with work to do, by group
	running map[Ticket]string // plugins at work, by the ticket of their action
	waiting int               // plugins whose objects are written but not ready yet
	began   time.Time         // of the first group
}

// ownWork is what one of Berth's own plugins has reserved for a pod and is to be written to the API
// before the pod is bound. It may be written at the same time as what others have to write.
type ownWork struct {
	plugin string
	write  func(b *placement, ticket Ticket) Action
	// written, if set, takes in the answer, whatever it is.
	written func(ps *placements, b *placement, o Outcome)
	then    waitFor
	failed  func(ps *placements) // if set, counts that writing it, or waiting for it, has failed
}

// deviceWork is what has to be written about a pod's devices before it is bound.
type deviceWork struct {
	plugins.ReservedClaims
	uses    []claimUse                  // of Claims, in their order; nil once the pod has left them
	written []*resourcev1.ResourceClaim // claims written so far, as the API server returned them
	shared  []*sharedClaim              // of Claims, also once the pod has left them
}

// objectWaits are what placements wait for in the cluster's objects, in the order in which the
// waits began. They are checked when an object has changed that one of them may depend on: see
// happenings.objects. There are few at a time, so a list is enough.
type objectWaits []*objectWait

// objectWait is one wait. It is met when the plugin's objects are as the placement needs them.
type objectWait struct {
	*placement
	waitFor
	plugin          string
	began, deadline time.Time
}

// waitFor is a kind of condition.
type waitFor struct {
	late   string                  // the error if it is not met by the deadline
	needed func(b *placement) bool // nil: always
	told   func(b *placement) Tell // of the event when the wait begins; nil: none
	within func(b *placement) time.Duration
	met    func(c *cluster.Cluster, b *placement) (bool, error)
	// over reports how the wait ended: success, failure, timeout or error; nil: nobody asks.
	over func(ps *placements, b *placement, how string, took time.Duration)
}

// newPlacements leaves outcome to be set by assembleCore.
func newPlacements(s *common, news *happenings, n *nominations, l *sharedClaims) *placements {
	return &placements{
		common: s, news: news, nominations: n, claims: l, byPod: map[types.UID]*placement{}, held: map[Ticket]*placement{},
	}
}

// countUnderWay counts the pods that are assumed: counted on a node that no watch has shown them
// on.
func (ps *placements) countUnderWay() int { return len(ps.byPod) }

// enter registers the placement of a pod that was just placed in the cluster model; leave is its
// counterpart, and leaves the model alone.
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

// Error words the verdict as for a cluster of one node: "0/1 nodes are available: ...", as upstream
// does for a pod that is rejected after its node was chosen.
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

// uncountPod takes the pod off the node that it was counted on. It does nothing if the pod has
// another placement by now, or none.
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

// cancelBind asks for the binding not to be made. Its answer, which always comes, ends the
// placement.
func (ps *placements) cancelBind(b *placement, why *Fault) {
	if b.ending == nil {
		b.ending = why
		ps.addAction(Cancel{b.binding, why.Message})
	}
}

// bindPod sends the Bind action. From now on the pod can only be stopped by a Cancel that comes
// before the Bind begins.
func (ps *placements) bindPod(b *placement) {
	b.stage = binding
	b.binding = ps.issueErrand(bindErrand{ps, b})
	ps.addAction(Bind{b.binding, &b.Attempt, &b.profile.Stages})
}

// endAttempt tells out-of-tree plugins that an attempt is over. A failed attempt is over once what
// it reserved has been given back.
func (b *placement) endAttempt(bound bool) {
	for _, e := range b.profile.end {
		e.End(&b.Attempt, bound)
	}
}

// startTiming returns a function to be called when the plugin has answered. Plugins of attempts
// that are not sampled are not timed, which would cost as much as a cheap plugin.
func (s *common) startTiming(b *placement, plugin string, point plugins.Point) func(ok bool) {
	if !b.Sampled {
		return func(bool) {}
	}
	began := s.clock()
	return func(ok bool) { s.observer().RanPlugin(plugin, point, ok, s.clock().Sub(began)) }
}

// nextTimeout is when the next plugin's wait times out. It is the zero time once the wait is over.
func (p *permitHold) nextTimeout() (at time.Time) {
	for _, w := range p.pending {
		if at.IsZero() || w.until.Before(at) {
			at = w.until
		}
	}
	return at
}
