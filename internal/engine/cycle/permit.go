package cycle

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// permit is a pod's wait at Permit.
type permit struct {
	ticket  Ticket
	since   time.Time
	pending map[string]wait // by plugin that has not allowed it; empty once the wait is over
	verdict *rejection      // a plugin's verdict, if it rejected the pod
	over    bool
}

type wait struct {
	most  time.Duration
	until time.Time
}

// nextTimeout is when the next plugin's wait times out.
func (p *permit) nextTimeout() (at time.Time) {
	for _, w := range p.pending {
		if at.IsZero() || w.until.Before(at) {
			at = w.until
		}
	}
	return at
}

// maxPermitWait is the longest wait at Permit, as in kube-scheduler.
const maxPermitWait = 15 * time.Minute

// askPermit calls the Permit plugins and returns which of them make the pod wait, and for how long
// at most.
func (ps *placements) askPermit(b *placement) (waits map[string]time.Duration, err error) {
	if len(b.profile.permit) == 0 {
		return nil, nil
	}
	began := ps.clock()
	waits = map[string]time.Duration{}

	for _, p := range b.profile.permit {
		done := ps.startTiming(b, p.Name(), plugins.Permit)
		refused, wait := p.Permit(&b.Attempt)
		done(refused == nil)
		switch {
		case refused != nil && refused.Err != nil:
			return nil, fmt.Errorf("running Permit plugin %q: %w", p.Name(), refused.Err)
		case refused != nil:
			ps.observer().Ran(b.Profile, plugins.Permit, false, ps.clock().Sub(began))
			return nil, &rejection{p.Name(), refused}
		case wait > 0:
			waits[p.Name()] = min(wait, maxPermitWait)
		}
	}

	ps.observer().Ran(b.Profile, plugins.Permit, true, ps.clock().Sub(began))
	return waits, nil
}

// holdPod makes a pod wait. Events from now on may help it if it is rejected in the end.
func (ps *placements) holdPod(b *placement, waits map[string]time.Duration) {
	b.permit = &permit{ticket: ps.issueTicket(), since: ps.now, pending: map[string]wait{}}
	for name, most := range waits {
		b.permit.pending[name] = wait{most, ps.now.Add(most)}
	}
	ps.held[b.permit.ticket] = b
	ps.news.held = len(ps.held)
	ps.nominations.clearGated() // before Held: its own assumption is no event that may help it
	ps.news.flushEvents()
	ps.queue.Held(b.item)
	ps.addAction(Hold{Ticket: b.permit.ticket, Pod: b.Pod, Node: b.Node, Waits: waits, Since: ps.now})
}

func (ps *placements) permitAllowed(e PermitAllowed) {
	b := ps.held[e.Ticket]
	if b == nil {
		return
	}
	delete(b.permit.pending, e.Plugin)
	if len(b.permit.pending) > 0 {
		return
	}
	ps.endPermitWait(b, "allowed")
	if len(b.prepare.running) == 0 { // otherwise the Preflight is not answered yet
		ps.nextGroup(b)
	}
}

func (ps *placements) permitRejected(e PermitRejected) {
	b := ps.held[e.Ticket]
	if b == nil {
		return
	}
	if e.Preempted {
		ps.stopPreparation(b, &Fault{Message: "waiting on permit for pod: " + e.Message})
		return
	}
	ps.refusePermit(b, "rejected", e.Plugin, e.Message)
}

// refusePermit ends a wait with a plugin's verdict, or because none came in time.
func (ps *placements) refusePermit(b *placement, how, plugin, message string) {
	b.permit.verdict = &rejection{plugin, &plugins.Rejection{Code: "Permit", Reasons: []string{message}}}
	ps.endPermitWait(b, how)
	ps.stopPreparation(b, &Fault{Message: message, Verdict: true})
}

// endPermitWait ends the pod's wait at Permit, if there is one.
func (ps *placements) endPermitWait(b *placement, how string) {
	p := b.permit
	if p == nil || p.over {
		return
	}
	p.over, p.pending = true, nil
	delete(ps.held, p.ticket)
	ps.news.held = len(ps.held)
	ps.observer().Permitted(how, ps.now.Sub(p.since))
	ps.addAction(Release{p.ticket, how, ps.now.Sub(p.since)})
}

// timeOut ends waits that have expired, at Permit and for objects.
func (ps *placements) timeOut() {
	for _, ticket := range slices.Sorted(maps.Keys(ps.held)) {
		b := ps.held[ticket]
		if b == nil { // released together with its group
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(b.permit.pending)) {
			if w := b.permit.pending[name]; !w.until.After(ps.now) {
				ps.refusePermit(b, "timed out", name, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", w.most, name))
				break
			}
		}
	}
	ps.checkConditions()
}

// waits are how long Permit plugins make a pod wait at most, by plugin.
type waits = map[string]time.Duration
