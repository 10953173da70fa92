// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"time"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// maxPermitWait is the longest wait at Permit, as in kube-scheduler.
const maxPermitWait = 15 * time.Minute

// askPermit calls the Permit plugins and returns the maximum wait of each plugin holding the pod.
// Longer waits are capped at maxPermitWait. The first refusal ends the round: later plugins are not
// called.
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

// holdPod makes a pod wait. If the pod is later rejected, only events after this call may help it.
func (ps *placements) holdPod(b *placement, waits map[string]time.Duration) {
	b.permit = &permitHold{ticket: ps.issueTicket(), since: ps.now, pending: map[string]wait{}}
	for name, most := range waits {
		b.permit.pending[name] = wait{most, ps.now.Add(most)}
	}
	ps.held[b.permit.ticket] = b
	ps.events.held = len(ps.held)
	ps.nominations.clearGated() // before Held, since events of the pod's own assumption must not help it
	ps.events.flushEvents()
	ps.queue.Held(b.item)
	ps.addAction(Hold{Ticket: b.permit.ticket, Pod: b.Pod, Node: b.Node, Waits: waits, Since: ps.now})
}

// endPermitWait ends the pod's wait at Permit, if any. how is a label of the metric: allowed,
// rejected or timed out.
func (ps *placements) endPermitWait(b *placement, how string) {
	p := b.permit
	if p == nil || p.over {
		return
	}
	p.over, p.pending = true, nil
	delete(ps.held, p.ticket)
	ps.events.held = len(ps.held)
	ps.observer().Permitted(how, ps.now.Sub(p.since))
	ps.addAction(Release{p.ticket, how, ps.now.Sub(p.since)})
}

// permitWaits maps Permit plugins to their maximum waits for a pod.
type permitWaits = map[string]time.Duration

// PermitAllowed and PermitRejected are a Permit plugin's verdicts on a waiting pod.
type (
	PermitAllowed struct {
		Ticket Ticket
		Plugin string
	}
	PermitRejected struct {
		Ticket  Ticket
		Plugin  string
		Message string
		// Preempted: another pod needs the pod's room. This is not a verdict on the pod, which is
		// retried.
		Preempted bool
	}
)

func (PermitAllowed) isEvent() {}

func (PermitRejected) isEvent() {}
