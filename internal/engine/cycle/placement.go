package cycle

import (
	"errors"
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

// placement is a pod on its way from the queue to its node. From assume on it is in Core.placements
// and its pod counts on the node, until forget takes both back or confirm finds that the watch
// shows the same.
type placement struct {
	Attempt
	profile *profile
	item    *queue.Item
	began   time.Time // by the clock of the core
	watch   time.Time // by the stopwatch

	questions int   // that were asked aside in this attempt
	unasked   error // what a rescuer failed with; it may be a question

	undo    []func()        // what was reserved for it by Berth's own plugins
	asked   bool            // out-of-tree plugins at Reserve were asked
	victims []decision.Name // that leave for it

	stage   stage
	permit  *permit     // while it is held
	prepare preparation // while it is preparing
	binding Ticket      // of its Bind, while it is binding

	// ending, once set, is why the pod is not to be bound after all; what is under way is
	// cancelled, and the last answer to it ends the placement.
	ending *Fault
	// dropped: the watch has shown the pod gone or elsewhere. Nobody waits for the placement, which
	// only gives back what it has.
	dropped bool
	// confirmed: the watch has shown the pod on its node before the answer to its Bind came.
	confirmed bool
	// sibling: it is being decided together with others of its group, and is none of their losses.
	sibling bool
	// room: another pod wants the room of this one, which is being bound. If it is bound, it is
	// removed.
	room *removal

	volumes plugins.PodVolumes
	devices deviceWork
}

// stage says how far a placement is.
type stage uint8

const (
	reserving stage = iota // in the step that decided it
	preparing              // held at Permit, or its PreBind is under way
	binding                // a Bind is under way
	bound                  // the API has it; the watch is yet to show it
)

// placements are all that are under way. Each pod has one at most.
type placements struct {
	byPod map[types.UID]*placement
	held  map[Ticket]*placement // those that wait at Permit
}

func newPlacements() placements {
	return placements{byPod: map[types.UID]*placement{}, held: map[Ticket]*placement{}}
}

func (p *placements) len() int { return len(p.byPod) }

// to lists the placements to a node, by pod, so that what is done about them has an order.
func (p *placements) to(node string) (list []*placement) {
	for _, uid := range slices.Sorted(maps.Keys(p.byPod)) {
		if b := p.byPod[uid]; b.Node == node {
			list = append(list, b)
		}
	}
	return list
}

// Why a binding is not carried out, or was not.
var (
	errGone           = &Fault{Message: "the pod was deleted"}
	errBoundElsewhere = &Fault{Message: "the pod was bound by somebody else"}
	errNodeGone       = &Fault{Message: "the node was removed before the pod was bound to it"}
	errPreempted      = &Fault{Message: "preempted by DefaultPreemption"}
)

// rejection is an error that stands for a plugin's verdict: the pod waits for what can help against
// it.
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

// assume counts the pod on the node, reserves what it needs beside room, and sees to its binding.
func (c *Core) assume(b *placement, n *cluster.Node) {
	b.Node = n.Name
	if nominated := c.cluster.Nominated(b.Pod.UID); nominated != nil && nominated.Nominated != n.Name {
		c.unnominate(b.Pod.UID)
	}
	undo, err := c.reserveOwn(b, n)
	b.undo = undo
	if err != nil {
		c.takeBack(b, err)
		return
	}
	c.cluster.Place(b.Waiting, n)
	c.placements.byPod[b.Pod.UID] = b
	c.came(b.Waiting, nil)
	if err := c.reserveOutside(b); err != nil {
		c.takeBack(b, err)
		return
	}
	waits, err := c.askPermit(b)
	if err != nil {
		c.takeBack(b, err)
		return
	}
	for _, e := range b.profile.assumed {
		e.Assumed(&b.Attempt)
	}
	c.prepare(b, waits)
}

// reserveOwn takes in the cluster's objects what the pod needs beside room.
func (c *Core) reserveOwn(b *placement, n *cluster.Node) (undo []func(), err error) {
	for _, r := range b.profile.Reservers {
		var give func()
		done := c.timing(b, r.Name(), plugins.Reserve)
		switch r := r.(type) {
		case *plugins.VolumeBinding:
			give, err = c.reserveVolumes(b, r, n)
		case *plugins.DynamicResources:
			give, err = c.reserveDevices(b, r, n)
		default:
			give, err = r.Reserve(c.cluster, b.Waiting, n)
		}
		if give != nil {
			undo = append(undo, give)
		}
		done(err == nil)
		if err != nil {
			return undo, fmt.Errorf("running Reserve plugin %q: %w", r.Name(), err)
		}
	}
	return undo, nil
}

func (c *Core) reserveOutside(b *placement) error {
	if len(b.profile.reserve) == 0 {
		return nil
	}
	began := c.clock()
	b.asked = true
	for _, r := range b.profile.reserve {
		done := c.timing(b, r.Name(), plugins.Reserve)
		refused := r.Reserve(&b.Attempt)
		done(refused == nil)
		if refused != nil {
			c.observer().Ran(b.Profile, plugins.Reserve, false, c.clock().Sub(began))
			if refused.Err != nil {
				return fmt.Errorf("running Reserve plugin %q: %w", r.Name(), refused.Err)
			}
			return &rejection{r.Name(), refused}
		}
	}
	c.observer().Ran(b.Profile, plugins.Reserve, true, c.clock().Sub(began))
	return nil
}

// giveBack undoes what was reserved.
func (c *Core) giveBack(b *placement) {
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

// forget takes the pod off the node that it was counted on.
func (c *Core) forget(b *placement) {
	if c.placements.byPod[b.Pod.UID] != b {
		return
	}
	delete(c.placements.byPod, b.Pod.UID)
	delete(c.preemptions.leaving, b.Pod.UID)
	if p := c.cluster.Pod(b.Pod.UID); p != nil { // it may be another one than was placed, if it was to leave
		n := p.Node
		c.cluster.RemovePod(b.Pod.UID)
		c.left(p, n, nil)
	}
}

// takeBack ends a placement that came to nothing; the pod goes back to the queue.
func (c *Core) takeBack(b *placement, err error) {
	c.giveBack(b)
	c.forget(b)
	c.end(b, false)
	defer c.memberLost(b, err)
	if refused := (*rejection)(nil); errors.As(err, &refused) {
		none := ""
		c.reject(b, &why{message: refused.Error(), plugins: []string{refused.plugin}}, &none, refused.Pending)
		return
	}
	c.fail(b, err)
}

// dropIt ends a placement that nobody waits for.
func (c *Core) drop(b *placement) {
	c.giveBack(b)
	c.end(b, false)
}

// withdraw has a pod not bound if it is not too late; it goes back to the queue, at once or with
// the answer to what is under way.
func (c *Core) withdraw(b *placement, why *Fault) {
	switch b.stage {
	case preparing:
		c.stop(b, why)
	case binding:
		if b.ending == nil {
			b.ending = why
			c.do(Cancel{b.binding, why.Message})
		}
	}
}

// abandon ends a placement because the pod is gone, or has its place without us.
func (c *Core) abandon(uid types.UID, why *Fault) {
	b := c.placements.byPod[uid]
	if b == nil {
		return
	}
	c.forget(b)
	c.letGo(b, why)
	c.memberLost(b, why)
}

// letGo has a placement that is not in the books any more end.
func (c *Core) letGo(b *placement, why *Fault) {
	b.dropped = true
	switch b.stage {
	case preparing:
		c.stop(b, why)
	case binding:
		if b.ending == nil {
			b.ending = why
			c.do(Cancel{b.binding, why.Message})
		}
	}
}

// confirm ends a placement that the watch has shown.
func (c *Core) confirm(b *placement) {
	delete(c.placements.byPod, b.Pod.UID)
	switch b.stage {
	case preparing:
		c.letGo(b, errBoundElsewhere)
	case binding: // the answer is still to come, and says by whom
		b.confirmed = true
		if b.ending == nil {
			b.ending = errBoundElsewhere
			c.do(Cancel{b.binding, errBoundElsewhere.Message})
		}
	}
}

// bindPod hands a binding over.
func (c *Core) bindPod(b *placement) {
	b.stage = binding
	b.binding = c.send(bindErrand{b})
	c.do(Bind{b.binding, &b.Attempt, &b.profile.Stages})
}

// bindErrand hears what came of a binding. A pod that was bound stays in the books until the watch
// shows it on its node.
type bindErrand struct{ *placement }

func (e bindErrand) answered(c *Core, o Outcome) {
	b := e.placement
	if o.Fault == nil && !o.Withdrawn {
		c.do(Announce{&b.Attempt})
	}
	if room := b.room; room != nil {
		b.room = nil
		defer c.roomOf(b, room)
	}
	switch {
	case b.dropped, b.confirmed && o.Withdrawn: // the watch has shown the pod meanwhile, gone or bound by others, and is right
		b.stage = bound
		c.drop(b)
	case b.confirmed:
		c.succeeded(b)
	case c.placements.byPod[b.Pod.UID] != b:
	case o.Withdrawn:
		c.takeBack(b, b.ending)
	case o.Fault != nil:
		c.takeBack(b, o.Fault)
	default:
		c.succeeded(b)
	}
}

// succeeded counts a pod that was bound.
func (c *Core) succeeded(b *placement) {
	b.stage = bound
	c.observer().Attempted(b.Profile, Scheduled, c.clock().Sub(b.watch))
	c.observer().Bound(b.item.Attempts, c.now.Sub(b.item.Admitted), b.item.Overdue)
	c.end(b, true)
	c.memberBound(b)
}

// String names the pod.
func (a *Attempt) String() string {
	if a.Pod == nil {
		return strings.TrimSpace(a.Profile)
	}
	return podName(a.Pod)
}
