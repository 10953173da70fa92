// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// objectWaits holds the placements' waits for the cluster's objects, in the order in which the
// waits began. A change of an object that a wait may depend on causes a check of all waits; see
// clusterEvents.objects. A list suffices because few waits exist at a time.
type objectWaits []*objectWait

// objectWait is one wait. The wait is over when the plugin's objects are in the state required by
// the placement.
type objectWait struct {
	*placement
	waitFor
	plugin          string
	began, deadline time.Time
}

// waitFor describes what a placement waits for; an objectWait is one such wait.
type waitFor struct {
	late   string                         // message of the error if the wait is not over by the deadline
	needed func(b *placement) bool        // whether the placement needs the wait; nil: always
	event  func(b *placement) RecordEvent // event recorded at the start of the wait; nil: none
	within func(b *placement) time.Duration
	met    func(c *cluster.Cluster, b *placement) (bool, error)
	// over, if set, reports the result of the wait: success, failure, timeout or error.
	over func(ps *placements, b *placement, how string, took time.Duration)
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
		if at.IsZero() || condition.deadline.Before(at) {
			at = condition.deadline
		}
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

// reportWait reports the result of a wait to the metrics.
func (ps *placements) reportWait(one *objectWait, how string) {
	if one.over != nil {
		one.over(ps, one.placement, how, ps.now.Sub(one.began))
	}
}

// endWaits ends the waits of a failed placement.
func (ps *placements) endWaits(b *placement) {
	for _, one := range ps.conditions {
		if one.placement == b {
			ps.reportWait(one, "error")
		}
	}
	ps.conditions = slices.DeleteFunc(ps.conditions, func(c *objectWait) bool { return c.placement == b })
	b.prepare.waiting = 0
}
