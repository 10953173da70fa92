package cycle

import (
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// preemptions keeps the removals under way, by preemptor and by victim.
type preemptions struct {
	// rounds, by preemptor: victims whose removal was requested and not answered yet. A preemptor
	// in here is not tried again.
	rounds map[types.UID]*round
	// leaving: victims that count as terminating although no watch has shown a deletion timestamp
	// yet. They are not chosen again, and nobody waits for them twice.
	leaving map[types.UID]bool
	// rescuing: a preemption is being decided, so its preemptor is not in the queue yet but will
	// want to hear of the events that follow.
	rescuing bool
}

// round is one preemption for one pod.
type round struct {
	left   int // removals not answered yet
	failed bool
	began  time.Time
}

func newPreemptions() preemptions {
	return preemptions{rounds: map[types.UID]*round{}, leaving: map[types.UID]bool{}}
}

// removal is one victim of a preemption.
type removal struct {
	victim     v1.ObjectReference
	generation int64     // the victim's
	by         string    // scheduler name of the preemptor
	pod        types.UID // the preemptor
	message    string
	*round
}

// preempt looks for victims whose removal makes room for a pod that fits on no node.
func (c *Core) preempt(b *placement) Rescue {
	found := c.victimsFor(b)
	if aside := (*plugins.Aside)(nil); errors.As(found.Err, &aside) {
		return Rescue{Err: aside}
	}
	if errors.Is(found.Err, decide.ErrTooLong) {
		return Rescue{Err: found.Err}
	}
	if found.Node != nil {
		c.asUnits(&found)
	}
	c.observer().Preempted(len(found.Victims))
	if found.Node == nil {
		r := Rescue{Message: "preemption: " + found.Message, Rejectors: found.Plugins}
		if !found.Ineligible {
			none := ""
			r.Nominate = &none
		}
		return r
	}
	c.makeRoom(b, found)
	return Rescue{Nominate: &found.Node.Name, Final: true}
}

// victimsFor looks for victims: first for such that no group that leaves as a whole breaks a
// budget, then for any.
func (c *Core) victimsFor(b *placement) decide.Preemption {
	own, priority := c.groupOf(b.item), b.Waiting.Class.Priority
	stand := c.shields(own, priority, true)
	shielded := len(stand.pods)
	found := b.profile.Preempt(b.Waiting)
	stand.lower()
	if shielded == 0 || found.Node != nil || found.Err != nil || found.Ineligible || b.profile.KeepBudgets && priority < rules.SystemCritical {
		return found
	}
	stand = c.shields(own, priority, false)
	defer stand.lower()
	if len(stand.pods) == shielded { // no budget made the difference
		return found
	}
	return b.profile.Preempt(b.Waiting)
}

// makeRoom starts the removal of the victims. Pods of lower priority that are nominated to the node
// lose their nomination.
func (c *Core) makeRoom(b *placement, found decide.Preemption) {
	n := found.Node
	for _, waiting := range append([]*cluster.Pod(nil), n.Nominated...) {
		if waiting.Class.Priority < b.Waiting.Class.Priority {
			c.moveOn(waiting)
		}
	}
	all := &round{began: c.now}
	for _, victim := range found.Victims {
		b.victims = append(b.victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})
		if victim.Terminating || victim.Node == nil { // without a node: released just now together with its group
			continue
		}
		r := &removal{
			victim:     v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: victim.Namespace(), Name: victim.Name, UID: victim.UID},
			generation: victim.Generation,
			by:         b.Profile, pod: b.Pod.UID, message: fmt.Sprintf("Preempted by pod %v on node %v", b.Pod.UID, n.Name), round: all,
		}
		c.evict(victim, r)
	}
	c.countVictims("")
}

// evict removes one victim: at once if its binding has not begun, otherwise when the binding is
// over.
func (c *Core) evict(victim *cluster.Pod, r *removal) {
	switch v := c.placements.byPod[victim.UID]; {
	case v != nil && v.stage == preparing:
		c.withdraw(v, errPreempted)
		c.tellPreempted(r, " (in kube-scheduler memory).")
	case v != nil && v.stage == binding && v.room == nil:
		c.expect(r)
		v.room = r
		c.withdraw(v, errPreempted)
	default:
		c.expect(r)
		c.leaving(victim)
		c.remove(r)
	}
}

// expect counts a removal that must be answered before the preemptor is tried again.
func (c *Core) expect(r *removal) {
	r.left++
	c.preemptions.rounds[r.pod] = r.round
}

func (c *Core) tellPreempted(r *removal, suffix string) {
	c.do(Tell{Profile: r.by, About: r.victim, Type: v1.EventTypeNormal, Reason: "Preempted", Message: r.message + suffix})
}

func (c *Core) remove(r *removal) {
	c.do(Remove{Ticket: c.send(removeErrand{r}), Victim: r.victim, By: r.by, For: r.pod, Generation: r.generation})
}

// roomOf continues with a victim whose binding was under way. The binding was withdrawn, failed, or
// succeeded; only in the last case is the pod removed.
func (c *Core) roomOf(victim *placement, r *removal) {
	p := c.cluster.Pod(r.victim.UID)
	if p == nil || p.Node == nil {
		c.tellPreempted(r, " (in kube-scheduler memory).")
		c.countVictims(r.victim.UID)
		c.told(r, nil)
		return
	}
	c.leaving(p)
	c.remove(r)
}

// removeErrand takes the answer to a Remove.
type removeErrand struct{ *removal }

func (e removeErrand) answered(c *Core, o Outcome) {
	if o.Fault == nil {
		c.tellPreempted(e.removal, "")
	} else {
		c.stays(e.victim.UID, e.pod)
	}
	c.told(e.removal, o.Fault)
}

// told counts an answered removal. The last one lets the preemptor be tried again.
func (c *Core) told(r *removal, fault *Fault) {
	r.failed = r.failed || fault != nil
	if r.left--; r.left > 0 {
		return
	}
	if c.preemptions.rounds[r.pod] == r.round {
		delete(c.preemptions.rounds, r.pod)
	}
	c.observer().RemovedVictims(!r.failed, c.now.Sub(r.began))
	c.wakeGroup(c.groupByUID(r.pod), queue.ForceActivate)
	switch item := c.queue.Get(r.pod); {
	case item == nil:
	case r.failed: // backs off, so that a failing removal is not repeated without a pause
		c.queue.Retry(r.pod, queue.ForceActivate, c.now)
	case item.Place() == queue.Gated:
		c.queue.Wake(r.pod, queue.ForceActivate, c.now)
	}
}

// leaving marks a victim as terminating before a watch shows it.
func (c *Core) leaving(victim *cluster.Pod) {
	c.preemptions.leaving[victim.UID] = true
	was, n := *victim, victim.Node
	c.changedPlaced(&was, n, c.replaceAs(victim, true), nil, nil)
}

// stays undoes leaving for a victim that could not be removed. Other pods may be nominated to its
// node because they counted on the room: they are tried again after their back-off.
func (c *Core) stays(victim, preemptor types.UID) {
	if !c.preemptions.leaving[victim] { // a watch already showed it terminating
		return
	}
	delete(c.preemptions.leaving, victim)
	if p := c.cluster.Pod(victim); p != nil {
		p = c.replaceAs(p, false)
		if p.Node != nil {
			for _, waiting := range slices.Clone(p.Node.Nominated) {
				if waiting.UID != preemptor {
					c.queue.Wake(waiting.UID, queue.ForceActivate, c.now)
				}
			}
		}
	}
	c.countVictims(victim)
}

// replaceAs replaces a pod in the cluster by a copy that is, or is not, leaving.
func (c *Core) replaceAs(p *cluster.Pod, leaving bool) *cluster.Pod {
	if p.Node == nil { // its node is gone, and may come back under the same name
		p.Terminating, p.Preempted = leaving, leaving
		return p
	}
	n, other := p.Node, *p
	c.cluster.RemovePod(p.UID)
	other.Node, other.Terminating, other.Preempted = nil, leaving, leaving
	c.cluster.Place(&other, n)
	return &other
}

// moveOn clears the nomination of a pod whose nominated node no longer has room for it.
func (c *Core) moveOn(p *cluster.Pod) {
	c.unnominate(p.UID)
	item := c.queue.Get(p.UID)
	if item == nil {
		return
	}
	none := ""
	c.do(WriteStatus{Pod: item.Pod, Nominate: &none})
	c.queue.Wake(p.UID, queue.ForceActivate, c.now)
}
