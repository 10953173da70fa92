// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
)

// Preflight queries the out-of-tree PreBind plugins for their work on the pod. The outcome carries
// their Work. It is issued even if Berth's own plugins need no writes, since only the out-of-tree
// plugins can determine their work.
type Preflight struct {
	Ticket  Ticket
	Attempt *Attempt
	By      *Stages
}

func (a Preflight) String() string { return fmt.Sprintf("preflight %s #%d", a.Attempt, a.Ticket) }

// startPreparation begins the work required before binding a pod that has a node and reservations.
// Most pods need no preparation: their Bind is returned in the step of the decision.
//
// The preparation of other pods has the following steps. Each arrow is a wait, or an action and its
// outcome:
//
//	Preflight -> nomination written -> Permit allowed -> group 1 of PreBind -> ... -> Bind
//
// kube-scheduler waits at Permit on a goroutine per pod, and runs PreBind there. In Berth, each
// step begins when the outcome of the previous step arrives. b.prepare holds the outstanding steps.
func (ps *placements) startPreparation(b *placement) {
	if b.permit == nil && len(b.own) == 0 && len(b.profile.PreBind) == 0 {
		ps.bindPod(b)
		return
	}
	b.stage = preparing
	b.prepare.running = map[Ticket]string{}
	if len(b.profile.PreBind) > 0 {
		// The Preflight runs while the pod is held: Permit plugins may take minutes.
		ticket := ps.issueHandled(b, func(o Outcome) { ps.preflightEnded(b, o) })
		b.prepare.running[ticket] = ""
		ps.addAction(Preflight{ticket, &b.Attempt, &b.profile.Stages})
		return
	}
	ps.groupPreBind(b, nil)
}

// preflightEnded continues with the groups of PreBind plugins after the outcome of a Preflight. If
// the placement was stopped while the Preflight was outstanding, this outcome ends it.
func (ps *placements) preflightEnded(b *placement, o Outcome) {
	clear(b.prepare.running)
	if b.ending != nil || o.Fault != nil {
		ps.stopPreparation(b, o.Fault)
		return
	}
	ps.groupPreBind(b, o.Work)
}

// groupPreBind puts the plugins with work into groups, in the order of the profile. An exclusive
// plugin separates the plugins before it from the plugins after it, even if it has no work itself.
// outside holds the work of the profile's PreBind plugins in profile order, or nil.
//
// For example, of the four plugins A, B, C and D, only C must run exclusively, and A, B and D have
// work. If C has no work, the groups are [A B] and [D]. If C has work, they are [A B], [C] and [D].
func (ps *placements) groupPreBind(b *placement, outside []PreBindWork) {
	work := map[string]PreBindWork{}
	for i, p := range b.profile.PreBind {
		if i < len(outside) {
			work[p.Name()] = outside[i]
		}
	}
	for i := range b.own {
		// Berth's own plugins write different objects, so they may write concurrently.
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
	expected := (b.permit != nil || b.takesLong()) && b.Pod.Status.NominatedNodeName != b.Node
	if expected && !ps.options.Disabled.Expectation { // the nomination makes autoscalers keep the node
		node := b.Node
		ticket := ps.issueHandled(b, func(o Outcome) { ps.nominationWritten(b, o) })
		b.prepare.running[ticket] = nominateStep
		ps.addAction(WriteStatus{Ticket: ticket, Pod: b.Pod, Nominate: &node})
		ps.noteNominating(b.item, node)
		return
	}
	if b.permit == nil || b.permit.over {
		ps.nextGroup(b)
	}
}

// takesLong reports whether the pod's binding waits for another party: an out-of-tree plugin, or
// the controller or driver awaited by Berth's own plugin. Writing claims does not count: it takes
// no longer than the binding, and the nomination would only add another write.
func (b *placement) takesLong() bool {
	return slices.ContainsFunc(slices.Concat(b.prepare.groups...), func(plugin string) bool {
		own := b.ownWork(plugin)
		return own == nil || own.next.needed == nil || own.next.needed(b)
	})
}

// nominationWritten starts the first group after the outcome of the write of the nomination. If the
// pod is still held, the last PermitAllowed starts it instead. If the write failed, the preparation
// continues without a nomination.
func (ps *placements) nominationWritten(b *placement, o Outcome) {
	// The write has failed, so no watch will show the nomination.
	if n := b.item.Nominating; n != nil && n.Node == b.Node && (o.Fault != nil || o.Withdrawn) {
		b.item.Nominating = nil
	}
	if b.ending != nil { // the preparation ended without waiting for this outcome
		return
	}
	clear(b.prepare.running)
	if b.permit == nil || b.permit.over {
		ps.nextGroup(b)
	}
}

// PreBind runs an out-of-tree PreBind plugin for the pod. A Verdict fault makes the pod
// unschedulable; any other fault is an error.
type PreBind struct {
	Ticket  Ticket
	Attempt *Attempt
	Plugin  PreBinder
}

func (a PreBind) String() string {
	return fmt.Sprintf("prebind %s by %s #%d", a.Attempt, a.Plugin.Name(), a.Ticket)
}

// nextGroup starts the next group, or binds the pod if all groups have finished. It looks up the
// node again before the Bind, since the node may have been removed during a write.
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
		ticket := ps.issueHandled(b, func(o Outcome) { ps.preBindEnded(b, name, o) })
		p.running[ticket] = name
		if own := b.ownWork(name); own != nil {
			ps.addAction(own.write(b, ticket))
			continue
		}
		// groupPreBind takes the names from this list, so the plugin is always found.
		i := slices.IndexFunc(b.profile.PreBind, func(p PreBinder) bool { return p.Name() == name })
		ps.addAction(PreBind{ticket, &b.Attempt, b.profile.PreBind[i]})
	}
}

// preBindEnded handles the outcome of a plugin's work. It records the written objects even if the
// placement is being stopped, because they must be released.
func (ps *placements) preBindEnded(b *placement, plugin string, o Outcome) {
	maps.DeleteFunc(b.prepare.running, func(_ Ticket, name string) bool { return name == plugin })
	own := b.ownWork(plugin)
	if own != nil && own.written != nil {
		own.written(ps, b, o)
	}

	fault := o.Fault
	// An action cancelled before it began counts as failed for the preparation waiting for it.
	if o.Withdrawn && fault == nil {
		fault = &Fault{Message: "withdrawn"}
	}

	if own != nil && fault == nil && b.ending == nil {
		ps.awaitCondition(b, plugin, own.next)
	}
	ps.workDone(b, plugin, fault)
}

// ownWork returns the work of Berth's own plugin of that name, or nil.
func (b *placement) ownWork(plugin string) *ownWork {
	return rules.Find(b.own, func(w *ownWork) bool { return w.plugin == plugin })
}

// workDone records that a plugin's work has ended or failed. The first fault stops the work of the
// other plugins. Started work is cancelled, and its outcome is also handled by workDone. The last
// outcome finishes the placement.
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

// awaitCondition makes a placement wait, if needed, until a plugin's written objects are ready.
// Since the objects may be ready already, events.objects is set to check them in the next tick.
func (ps *placements) awaitCondition(b *placement, plugin string, w waitFor) {
	if w.needed != nil && !w.needed(b) {
		return
	}
	if w.event != nil {
		ps.addAction(w.event(b))
	}
	b.prepare.waiting++
	ps.conditions = append(ps.conditions, &objectWait{b, w, plugin, ps.now, ps.now.Add(w.within(b))})
	ps.events.objects = true
}

// nextDeadline returns the next deadline, or zero.
func (l objectWaits) nextDeadline() (at time.Time) {
	for _, condition := range l {
		at = pacing.Sooner(at, condition.deadline)
	}
	return at
}

// checkConditions ends the waits that are met, failed or overdue. It checks the deadlines on every
// call, and the conditions only after a change of an object. A condition met at its deadline counts
// as met.
func (ps *placements) checkConditions() {
	looked := ps.events.objects
	ps.events.objects = false
	for _, one := range slices.Clone(ps.conditions) {
		b := one.placement
		if !slices.Contains(ps.conditions, one) { // dropped because another condition of its placement failed
			continue
		}
		met, err := false, error(nil)
		if looked {
			met, err = one.met(ps.cluster, b)
		}

		var fault *Fault
		how := "success"
		switch {
		case errors.Is(err, plugins.ErrDeviceBinding):
			fault, how = faultOf(err), "failure"
		case err != nil:
			fault, how = faultOf(err), "error"
		case met:
		case !one.deadline.After(ps.now):
			fault, how = &Fault{Message: one.late}, "timeout"
		default:
			continue
		}
		ps.reportWait(one, how)
		ps.conditions = slices.DeleteFunc(ps.conditions, func(other *objectWait) bool { return other == one })
		b.prepare.waiting--
		ps.workDone(b, one.plugin, fault)
	}
}
