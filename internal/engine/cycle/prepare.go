package cycle

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// preparation is what must be done before a pod is bound, in this order: Preflight, Permit, then
// the PreBind plugins in groups. A group runs at the same time, one group after the other.
type preparation struct {
	groups  [][]string        // plugins with work to do, by group
	running map[Ticket]string // plugins at work, by the ticket of their action
	waiting int               // plugins whose objects are written but not ready yet
	began   time.Time         // of the first group
}

// prepare takes a pod that has its node and its reservations to its binding.
func (c *Core) prepare(b *placement, waits map[string]time.Duration) {
	if len(waits) == 0 && len(b.own) == 0 && len(b.profile.PreBind) == 0 {
		c.bindPod(b)
		return
	}
	b.stage = preparing
	b.prepare.running = map[Ticket]string{}
	if len(waits) > 0 {
		c.hold(b, waits)
	}
	if len(b.profile.PreBind) > 0 {
		ticket := c.send(preflightErrand{b})
		b.prepare.running[ticket] = ""
		c.do(Preflight{ticket, &b.Attempt, &b.profile.Stages})
		return
	}
	c.group(b, nil)
}

// ownWork is what one of Berth's own plugins has reserved for a pod and is to be written to the API
// before the pod is bound. It may be written at the same time as what others have to write.
type ownWork struct {
	plugin string
	write  func(c *Core, b *placement, ticket Ticket) Action
	// written, if set, takes the answer in, whatever it is.
	written func(c *Core, b *placement, o Outcome)
	then    waitFor
}

// ownWork returns the work of Berth's own plugin of that name, or nil.
func (b *placement) ownWork(plugin string) *ownWork {
	for i := range b.own {
		if b.own[i].plugin == plugin {
			return &b.own[i]
		}
	}
	return nil
}

// preflightErrand takes the answer to a Preflight.
type preflightErrand struct{ *placement }

func (e preflightErrand) answered(c *Core, o Outcome) {
	b := e.placement
	clear(b.prepare.running)
	if b.ending == nil && o.Fault != nil {
		b.ending = o.Fault
		c.release(b, "rejected")
	}
	if b.ending != nil {
		c.ended(b)
		return
	}
	c.group(b, o.Work)
}

// group puts the plugins with work into groups, in the order of the profile. A plugin that must run
// alone separates those before it from those after it, even if it has no work itself.
func (c *Core) group(b *placement, outside []PreBindWork) {
	work := map[string]PreBindWork{}
	for i, p := range b.profile.PreBind {
		if i < len(outside) {
			work[p.Name()] = outside[i]
		}
	}
	for i := range b.own {
		work[b.own[i].plugin] = PreBindWork{Needed: true, Parallel: true}
	}
	var groups [][]string
	var together []string
	part := func() {
		if len(together) > 0 {
			groups, together = append(groups, together), nil
		}
	}
	for _, name := range b.profile.At[plugins.PreBind] {
		of, known := work[name]
		if !known {
			continue
		}
		if !of.Parallel {
			part()
		}
		if of.Needed {
			together = append(together, name)
		}
		if !of.Parallel {
			part()
		}
	}
	part()
	b.prepare.groups = groups
	if (len(groups) > 0 || b.permit != nil) && b.Pod.Status.NominatedNodeName != b.Node { // tells autoscalers to keep the node
		node := b.Node
		ticket := c.send(nominateErrand{b})
		b.prepare.running[ticket] = nominate
		c.do(WriteStatus{Ticket: ticket, Pod: b.Pod, Nominate: &node})
		return
	}
	if b.permit == nil || b.permit.over {
		c.nextGroup(b)
	}
}

// nominate stands for the write of the nomination in preparation.running.
const nominate = "-"

// nominateErrand takes the answer to the write of the nomination. If that failed, the pod goes on
// without it.
type nominateErrand struct{ *placement }

func (e nominateErrand) answered(c *Core, _ Outcome) {
	b := e.placement
	if b.ending != nil { // the preparation ended without waiting for this
		return
	}
	clear(b.prepare.running)
	if b.permit == nil || b.permit.over {
		c.nextGroup(b)
	}
}

// nextGroup starts the next group, or binds the pod if all have finished.
func (c *Core) nextGroup(b *placement) {
	p := &b.prepare
	if p.began.IsZero() {
		p.began = c.now
	}
	if len(p.groups) == 0 {
		if c.cluster.Node(b.Node) == nil {
			b.ending = errNodeGone
			c.ended(b)
			return
		}
		c.bindPod(b)
		return
	}
	group := p.groups[0]
	p.groups = p.groups[1:]
	for _, name := range group {
		ticket := c.send(preBindErrand{b, name})
		p.running[ticket] = name
		if own := b.ownWork(name); own != nil {
			c.do(own.write(c, b, ticket))
			continue
		}
		i := slices.IndexFunc(b.profile.PreBind, func(p PreBinder) bool { return p.Name() == name })
		c.do(PreBind{ticket, &b.Attempt, b.profile.PreBind[i]})
	}
}

// preBindErrand takes the answer to a plugin's work.
type preBindErrand struct {
	*placement
	plugin string
}

func (e preBindErrand) answered(c *Core, o Outcome) {
	b, p := e.placement, &e.placement.prepare
	for _, ticket := range slices.Sorted(maps.Keys(p.running)) {
		if p.running[ticket] == e.plugin {
			delete(p.running, ticket)
		}
	}
	own := b.ownWork(e.plugin)
	if own != nil && own.written != nil {
		own.written(c, b, o)
	}
	fault := o.Fault
	if o.Withdrawn && fault == nil {
		fault = &Fault{Message: "withdrawn"}
	}
	if own != nil && fault == nil && b.ending == nil {
		c.await(b, e.plugin, own.then)
	}
	c.workDone(b, e.plugin, fault)
}

// workDone notes that a plugin's work has ended or failed.
func (c *Core) workDone(b *placement, plugin string, fault *Fault) {
	p := &b.prepare
	if fault != nil && b.ending == nil {
		if !fault.Verdict {
			fault = &Fault{Message: fmt.Sprintf("running PreBind plugin %q: %s", plugin, fault.Message)}
		}
		c.stop(b, fault)
		return
	}
	if b.ending != nil {
		c.ended(b)
		return
	}
	if len(p.running)+p.waiting == 0 {
		if len(p.groups) == 0 {
			c.observer().Ran(b.Profile, plugins.PreBind, true, c.now.Sub(p.began))
		}
		c.nextGroup(b)
	}
}

// stop ends a preparation: at once if nothing is under way, otherwise with the last answer.
func (c *Core) stop(b *placement, why *Fault) {
	if b.ending == nil {
		b.ending = why
		for _, ticket := range slices.Sorted(maps.Keys(b.prepare.running)) {
			if b.prepare.running[ticket] == nominate {
				delete(b.prepare.running, ticket)
				continue
			}
			c.do(Cancel{ticket, why.Message})
		}
	}
	c.conditions.drop(b)
	c.release(b, "rejected")
	c.ended(b)
}

// ended finishes a preparation that was stopped, once nothing of it is under way.
func (c *Core) ended(b *placement) {
	if len(b.prepare.running) > 0 {
		return
	}
	if !b.prepare.began.IsZero() {
		c.observer().Ran(b.Profile, plugins.PreBind, false, c.now.Sub(b.prepare.began))
	}
	b.stage = bound // nothing is left to be cancelled
	if b.dropped {
		c.drop(b)
		return
	}
	if b.permit != nil && b.permit.verdict != nil {
		c.takeBack(b, b.permit.verdict)
		return
	}
	c.takeBack(b, b.ending)
}
