// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
)

// recover begins to undo the surges left behind by an earlier run. The first plan follows in the
// stage recovering (see advance).
func (d *Drainer) recover() {
	if !d.options.DryRun {
		d.surges.recover(func(p *v1.Pod, _ surgeNote) bool { return slices.Contains(d.options.Nodes, p.Spec.NodeName) })
	}
	if d.stage == listing {
		d.stage = recovering
	}
}

// ask requests a plan and enters the given stage. Pods with a surge in progress are left to the
// surge.
func (d *Drainer) ask(then stage) {
	d.stage, d.at, d.stale = then, time.Time{}, false
	leaving := d.options.Leaving
	// The planner runs on another goroutine, so it gets a copy.
	leaving.Returned, leaving.Begun = maps.Clone(d.options.Returned), then == replanning
	leaving.Surging = map[types.UID]bool{}
	for _, s := range d.surges.list {
		leaving.Surging[s.UID] = true
	}
	d.addAction(PlanDrain{State: &rebalance.State{AsOf: d.wall(), World: d.cluster.Fork()}, Leaving: &leaving})
}

// replanned handles a plan.
//
// The first plan is reported and may refuse the drain before anything has changed. A later plan may
// also refuse the drain, if a pod that must not be evicted has appeared since.
func (d *Drainer) replanned(plan *rebalance.Draining) {
	first := d.stage == checking
	if !first && d.stage != replanning {
		return
	}
	d.plan, d.planned, d.due = plan, d.now, rules.Pointers(plan.Pods)
	if d.late++; !d.stale {
		d.late = 0
	}
	// In a busy cluster, some pod is scheduled during every plan. After mostStale outdated plans in
	// a row, the newest one is used anyway.
	d.stale = d.stale && d.late < mostStale
	if first {
		d.addAction(DrainProgress{Result: Proved, Plan: plan})
	}
	switch why := d.options.prevents(plan.Refused, plan.Stranded(), len(plan.Pods)); {
	case why != "":
		d.stranded = len(plan.Refused) == 0
		d.end(why)
	case d.options.DryRun:
		d.end("")
	case first:
		d.cordon()
	default:
		d.stage = emptying
	}
}

// prevents returns the reason a plan must not be carried out, or "": the plan refuses to evict a
// pod, or, without AllowPending, a successor would fit on no other node.
func (o *DrainOptions) prevents(refused []rebalance.Kept, stranded, pods int) string {
	switch {
	case len(refused) > 0:
		return refusals(refused)
	case stranded > 0 && !o.AllowPending:
		hint := " (--allow-pending continues anyway)"
		if o.Undisturbed { // an exchange, which lacks this flag
			hint = ""
		}
		return fmt.Sprintf("%d of %d pods would find no other node%s", stranded, pods, hint)
	}
	return ""
}

// refusals lists the pods preventing the drain in kubectl's format.
//
//	cannot delete Pods with local storage (use --delete-emptydir-data to override): web/a, web/b
func refusals(list []rebalance.Kept) string {
	var reasons []string
	for _, pods := range answer.Grouped(list, func(k rebalance.Kept) string { return k.Why }) {
		names := answer.Mapped(pods, func(k rebalance.Kept) string { return k.Namespace + "/" + k.Name })
		reasons = append(reasons, pods[0].Why+": "+strings.Join(names, ", "))
	}
	return strings.Join(reasons, "; ")
}

// cordon makes the nodes unschedulable, skipping nodes that already are.
func (d *Drainer) cordon() {
	d.stage = cordoning
	for _, name := range d.options.Nodes {
		if n := d.cluster.node(name); n != nil && n.Spec.Unschedulable {
			d.report(nil, Cordoned, name, "already cordoned")
			continue
		}
		ticket := d.nextTicket()
		d.waiting[ticket] = name
		d.addAction(Cordon{Ticket: ticket, Node: name})
	}
}

// cordoned reports whether all nodes have been observed as cordoned, ignoring deleted nodes. The
// response to the request is insufficient, because plans use the observed state.
func (d *Drainer) cordoned() bool {
	return !slices.ContainsFunc(d.options.Nodes, func(name string) bool {
		n := d.cluster.node(name)
		return n != nil && !n.Spec.Unschedulable
	})
}

// cordonAnswered handles the response to a cordon request. Later responses go to the mover.
func (d *Drainer) cordonAnswered(e Answered) {
	name, ok := d.waiting[e.Ticket]
	if !ok {
		return
	}
	delete(d.waiting, e.Ticket)
	if e.Outcome != response.OK {
		d.end(fmt.Sprintf("node %s cannot be cordoned: %s", name, e.Message))
		return
	}
	d.report(nil, Cordoned, name, "cordoned")
}
