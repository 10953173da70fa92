// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// This file makes a pod wait at Permit: holdPod sends the Hold, plugins answer with PermitAllowed
// or PermitRejected. The Release that ends the wait is in stop.go.

// maxPermitWait is the longest wait at Permit, as in kube-scheduler.
const maxPermitWait = 15 * time.Minute

// permitWaits maps Permit plugins to their maximum waits for a pod.
type permitWaits = map[string]time.Duration

// askPermit calls the Permit plugins and returns the maximum wait of each plugin holding the pod.
// Longer waits are capped at maxPermitWait. The first refusal ends the round: later plugins are not
// called.
func (ps *placements) askPermit(b *placement) (waits permitWaits, err error) {
	if len(b.profile.permit) == 0 {
		return nil, nil
	}
	began := ps.clock()
	waits = map[string]time.Duration{}

	for _, p := range b.profile.permit {
		done := ps.startTiming(b.podAttempt, p.Name(), plugins.Permit)
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

// Hold reports that plugins make the pod wait at Permit, each for a limited time. It has no
// outcome: PermitAllowed and PermitRejected carry the plugins' verdicts, and Release ends the Hold.
type Hold struct {
	Ticket Ticket
	Pod    *v1.Pod
	Node   string
	// Waits holds the maximum wait requested by each plugin, counted from Since. The core itself
	// ends expired waits; the executor of the actions needs no timer.
	Waits map[string]time.Duration
	Since time.Time
}

func (a Hold) String() string {
	var waits []string
	for _, plugin := range slices.Sorted(maps.Keys(a.Waits)) {
		waits = append(waits, fmt.Sprintf("%s %s", plugin, a.Waits[plugin]))
	}
	return fmt.Sprintf("hold %s on %s #%d: %s", podName(a.Pod), a.Node, a.Ticket, strings.Join(waits, ", "))
}

// proceed starts the preparation of a pod after Permit. waits holds the plugins that make it wait.
func (ps *placements) proceed(b *placement, waits permitWaits) {
	if len(waits) > 0 {
		ps.holdPod(b, waits)
	}
	ps.startPreparation(b)
}

// holdPod makes a pod wait. If the pod is later rejected, only events after this call may help it.
func (ps *placements) holdPod(b *placement, waits permitWaits) {
	b.stage = preparing
	b.permit = &permitHold{ticket: ps.issueTicket(), since: ps.now, pending: map[string]wait{}}
	for name, most := range waits {
		b.permit.pending[name] = wait{most, ps.now.Add(most)}
	}
	ps.held[b.permit.ticket] = b
	ps.events.held = len(ps.held)
	ps.nominations.clearGated() // before the pod is held, so that its own assumption does not wake it
	ps.events.flushEvents()
	ps.queue.Held(b.item)
	ps.addAction(Hold{Ticket: b.permit.ticket, Pod: b.Pod, Node: b.Node, Waits: waits, Since: ps.now})
}

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

// permitAllowed records that a plugin no longer holds the pod. permitAllowed and permitRejected
// ignore verdicts that arrive after the wait has timed out or was given up.
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
	if len(b.prepare.running) == 0 { // otherwise the outcome of the Preflight is outstanding
		ps.nextGroup(b)
	}
}

// permitRejected ends the wait with a plugin's verdict. A preempted pod received no verdict. It is
// retried after a back-off instead of waiting for an event.
func (ps *placements) permitRejected(e PermitRejected) {
	b := ps.held[e.Ticket]
	if b == nil {
		return
	}
	if e.Preempted {
		b.permit.preempted = true
		ps.stopPreparation(b, &Fault{Message: "waiting on permit for pod: " + e.Message})
		return
	}
	ps.refusePermit(b, "rejected", e.Plugin, e.Message)
}

// refusePermit ends a wait with a plugin's verdict, or with a timeout.
func (ps *placements) refusePermit(b *placement, how, plugin, message string) {
	b.permit.verdict = &rejection{plugin, &plugins.Rejection{Code: "Permit", Reasons: []string{message}}}
	ps.endPermitWait(b, how)
	ps.stopPreparation(b, &Fault{Message: message, Verdict: true})
}

// timeOut ends expired waits, both at Permit and for the conditions of PreBind. It handles waits at
// Permit in ticket order, so that the order of the resulting actions is fixed.
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
