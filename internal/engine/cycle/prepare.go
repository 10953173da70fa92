package cycle

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// preparation is what must be done before a pod is bound, in this order: Preflight, Permit, then
// the PreBind plugins in groups. The plugins of a group run at the same time, the groups one after
// the other.
type preparation struct {
	groups  [][]string        // plugins with work to do, by group
	running map[Ticket]string // plugins at work, by the ticket of their action
	waiting int               // plugins whose objects are written but not ready yet
	began   time.Time         // of the first group
}

// startPreparation takes a pod that has its node and its reservations to its binding.
func (ps *placements) startPreparation(b *placement, waits map[string]time.Duration) {
	if len(waits) == 0 && len(b.own) == 0 && len(b.profile.PreBind) == 0 {
		ps.bindPod(b)
		return
	}
	b.stage = preparing
	b.prepare.running = map[Ticket]string{}
	if len(waits) > 0 {
		ps.holdPod(b, waits)
	}
	if len(b.profile.PreBind) > 0 {
		ticket := ps.issueErrand(preflightErrand{ps, b})
		b.prepare.running[ticket] = ""
		ps.addAction(Preflight{ticket, &b.Attempt, &b.profile.Stages})
		return
	}
	ps.groupPreBind(b, nil)
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
type preflightErrand struct {
	ps *placements
	b  *placement
}

func (e preflightErrand) handleOutcome(o Outcome) {
	ps, b := e.ps, e.b
	clear(b.prepare.running)
	if b.ending == nil && o.Fault != nil {
		b.ending = o.Fault
		ps.endPermitWait(b, "rejected")
	}
	if b.ending != nil {
		ps.finishStopped(b)
		return
	}
	ps.groupPreBind(b, o.Work)
}

// groupPreBind puts the plugins with work into groups, in the order of the profile. A plugin that
// must run alone separates those before it from those after it, even if it has no work itself.
func (ps *placements) groupPreBind(b *placement, outside []PreBindWork) {
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
	expected := (len(groups) > 0 || b.permit != nil) && b.Pod.Status.NominatedNodeName != b.Node
	if expected && !ps.options.Disabled.Expectation { // tells autoscalers to keep the node
		node := b.Node
		ticket := ps.issueErrand(nominateErrand{ps, b})
		b.prepare.running[ticket] = nominate
		ps.addAction(WriteStatus{Ticket: ticket, Pod: b.Pod, Nominate: &node})
		return
	}
	if b.permit == nil || b.permit.over {
		ps.nextGroup(b)
	}
}

// nominate is the write of the nomination in preparation.running, in place of a plugin's name.
const nominate = "-"

// nominateErrand takes the answer to the write of the nomination. If that failed, the pod goes on
// without it.
type nominateErrand struct {
	ps *placements
	b  *placement
}

func (e nominateErrand) handleOutcome(Outcome) {
	b := e.b
	if b.ending != nil { // the preparation ended without waiting for this
		return
	}
	clear(b.prepare.running)
	if b.permit == nil || b.permit.over {
		e.ps.nextGroup(b)
	}
}

// nextGroup starts the next group, or binds the pod if all have finished.
func (ps *placements) nextGroup(b *placement) {
	p := &b.prepare
	if p.began.IsZero() {
		p.began = ps.now
	}

	if len(p.groups) == 0 {
		if ps.cluster.Node(b.Node) == nil {
			b.ending = errNodeGone
			ps.finishStopped(b)
			return
		}
		ps.bindPod(b)
		return
	}

	group := p.groups[0]
	p.groups = p.groups[1:]
	for _, name := range group {
		ticket := ps.issueErrand(preBindErrand{ps, b, name})
		p.running[ticket] = name
		if own := b.ownWork(name); own != nil {
			ps.addAction(own.write(b, ticket))
			continue
		}
		i := slices.IndexFunc(b.profile.PreBind, func(p PreBinder) bool { return p.Name() == name })
		ps.addAction(PreBind{ticket, &b.Attempt, b.profile.PreBind[i]})
	}
}

// preBindErrand takes the answer to a plugin's work.
type preBindErrand struct {
	ps     *placements
	b      *placement
	plugin string
}

func (e preBindErrand) handleOutcome(o Outcome) {
	ps, b, p := e.ps, e.b, &e.b.prepare
	for _, ticket := range slices.Sorted(maps.Keys(p.running)) {
		if p.running[ticket] == e.plugin {
			delete(p.running, ticket)
		}
	}

	own := b.ownWork(e.plugin)
	if own != nil && own.written != nil {
		own.written(ps, b, o)
	}

	fault := o.Fault
	if o.Withdrawn && fault == nil {
		fault = &Fault{Message: "withdrawn"}
	}

	if own != nil && fault == nil && b.ending == nil {
		ps.awaitCondition(b, e.plugin, own.then)
	}
	ps.workDone(b, e.plugin, fault)
}

// workDone notes that a plugin's work has ended or failed.
func (ps *placements) workDone(b *placement, plugin string, fault *Fault) {
	p := &b.prepare
	if fault != nil && b.ending == nil {
		if own := b.ownWork(plugin); own != nil && own.failed != nil {
			own.failed(ps)
		}
		if !fault.Verdict {
			fault = &Fault{Message: fmt.Sprintf("running PreBind plugin %q: %s", plugin, fault.Message)}
		}
		ps.stopPreparation(b, fault)
		return
	}

	if b.ending != nil {
		ps.finishStopped(b)
		return
	}

	if len(p.running)+p.waiting == 0 {
		if len(p.groups) == 0 {
			ps.observer().Ran(b.Profile, plugins.PreBind, true, ps.now.Sub(p.began))
		}
		ps.nextGroup(b)
	}
}

// stopPreparation ends a preparation: at once if nothing is under way, otherwise with the last
// answer.
func (ps *placements) stopPreparation(b *placement, why *Fault) {
	if b.ending == nil {
		b.ending = why
		for _, ticket := range slices.Sorted(maps.Keys(b.prepare.running)) {
			if b.prepare.running[ticket] == nominate {
				delete(b.prepare.running, ticket)
				continue
			}
			ps.addAction(Cancel{ticket, why.Message})
		}
	}
	ps.endWaits(b)
	ps.endPermitWait(b, "rejected")
	ps.finishStopped(b)
}

// finishStopped finishes a preparation that was stopped, once nothing of it is under way.
func (ps *placements) finishStopped(b *placement) {
	if len(b.prepare.running) > 0 {
		return
	}
	if !b.prepare.began.IsZero() {
		ps.observer().Ran(b.Profile, plugins.PreBind, false, ps.now.Sub(b.prepare.began))
	}
	b.stage = bound // nothing is left to be cancelled
	if b.dropped {
		ps.dropPlacement(b)
		return
	}
	if b.permit != nil && b.permit.verdict != nil {
		ps.takeBack(b, b.permit.verdict)
		return
	}
	ps.takeBack(b, b.ending)
}
