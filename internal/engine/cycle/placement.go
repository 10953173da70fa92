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

// placement is a pod on its way from the queue to its node. From assume until forget or confirm it
// is in Core.placements and its pod counts on the node. It ends in exactly one of three ways:
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
	asked   bool            // out-of-tree Reserve plugins were called, and must be told Unreserve
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
	// room, if set, is a preemption that chose this pod as a victim while its binding was under
	// way. If the binding succeeds, the pod is removed.
	room *removal

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

// placements holds all placements under way, at most one per pod.
type placements struct {
	byPod map[types.UID]*placement
	held  map[Ticket]*placement // those waiting at Permit, by the ticket of their Hold
}

func newPlacements() placements {
	return placements{byPod: map[types.UID]*placement{}, held: map[Ticket]*placement{}}
}

func (p *placements) len() int { return len(p.byPod) }

// to lists the placements to a node, sorted by pod so that the resulting actions have a fixed
// order.
func (p *placements) to(node string) (list []*placement) {
	for _, uid := range slices.Sorted(maps.Keys(p.byPod)) {
		if b := p.byPod[uid]; b.Node == node {
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

// assume counts the pod on the node, reserves what it needs beyond room, and starts its binding.
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

// reserveOwn runs the Reserve step of Berth's own plugins.
func (c *Core) reserveOwn(b *placement, n *cluster.Node) (undo []func(), err error) {
	for _, r := range b.profile.Reservers {
		var give func()
		done := c.timing(b, r.Name(), plugins.Reserve)
		switch r := r.(type) {
		case plugins.VolumeReserver:
			give, err = c.reserveVolumes(b, r, n)
		case plugins.ClaimReserver:
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

// giveBack undoes all reservations of a placement.
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
	if p := c.cluster.Pod(b.Pod.UID); p != nil { // a copy of what was placed, if the pod was marked as leaving
		n := p.Node
		c.cluster.RemovePod(b.Pod.UID)
		c.left(p, n, nil)
	}
}

// takeBack ends a placement that failed; the pod returns to the queue.
func (c *Core) takeBack(b *placement, err error) {
	c.giveBack(b)
	c.forget(b)
	c.end(b, false)
	defer c.memberLost(b, err)
	if refused := (*rejection)(nil); errors.As(err, &refused) {
		none := ""
		w := &why{message: refused.Error(), plugins: []string{refused.plugin}}
		if refused.Pending {
			w.pending = w.plugins
		}
		c.reject(b, w, &none)
		return
	}
	c.fail(b, err)
}

// drop ends a placement whose pod no longer needs one.
func (c *Core) drop(b *placement) {
	c.giveBack(b)
	c.end(b, false)
}

// withdraw stops a binding if it is not too late. The pod returns to the queue, at once or when the
// work under way is answered.
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

// abandon ends the placement of a pod that was deleted, or bound by another client.
func (c *Core) abandon(uid types.UID, why *Fault) {
	b := c.placements.byPod[uid]
	if b == nil {
		return
	}
	c.forget(b)
	c.letGo(b, why)
	c.memberLost(b, why)
}

// letGo ends a placement that is no longer in Core.placements.
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

// confirm ends a placement whose pod a watch shows on its node.
func (c *Core) confirm(b *placement) {
	delete(c.placements.byPod, b.Pod.UID)
	switch b.stage {
	case preparing:
		c.letGo(b, errBoundElsewhere)
	case binding: // the outstanding answer tells who bound it
		b.confirmed = true
		if b.ending == nil {
			b.ending = errBoundElsewhere
			c.do(Cancel{b.binding, errBoundElsewhere.Message})
		}
	}
}

// bindPod sends the Bind action.
func (c *Core) bindPod(b *placement) {
	b.stage = binding
	b.binding = c.send(bindErrand{b})
	c.do(Bind{b.binding, &b.Attempt, &b.profile.Stages})
}

// bindErrand takes the answer to a Bind. A pod that was bound stays in Core.placements until a
// watch shows it on its node.
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
	case b.dropped, b.confirmed && o.Withdrawn: // a watch already showed the pod gone or bound by another client, and is right
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

// succeeded ends the placement of a pod that was bound.
func (c *Core) succeeded(b *placement) {
	b.stage = bound
	c.observer().Attempted(b.Profile, Scheduled, c.clock().Sub(b.watch))
	c.observer().Bound(b.item.Attempts, c.now.Sub(b.item.Admitted), b.item.Overdue)
	c.end(b, true)
	c.memberBound(b)
}

// String returns the pod's namespace and name.
func (a *Attempt) String() string {
	if a.Pod == nil {
		return strings.TrimSpace(a.Profile)
	}
	return podName(a.Pod)
}
