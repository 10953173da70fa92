package execute

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// recover puts back what an earlier run has left behind, and then plans.
func (d *Drainer) recover() {
	if !d.options.DryRun {
		d.surges.recover(func(p *v1.Pod) bool { return slices.Contains(d.options.Nodes, p.Spec.NodeName) })
	}
	if d.stage == listing {
		d.stage = recovering
	}
}

// ask requests a plan, after which the drain is in the given stage. Pods whose surges are under way
// are left to these.
func (d *Drainer) ask(then stage) {
	d.stage, d.at, d.stale = then, time.Time{}, false
	leaving := d.options.Leaving
	// The planner runs on another goroutine, so it gets a copy.
	leaving.Returned, leaving.Begun = maps.Clone(d.options.Returned), then == replanning
	leaving.Surging = map[types.UID]bool{}
	for _, s := range d.surges.list {
		leaving.Surging[s.UID] = true
	}
	d.do(PlanDrain{State: &rebalance.State{AsOf: d.wall(), World: d.cluster.Fork()}, Leaving: &leaving})
}

// replanned handles a plan.
//
// The first plan is shown and may refuse the drain; nothing was changed before it. Later ones may
// refuse it, too: a pod may have come since that must not be evicted.
func (d *Drainer) replanned(plan *rebalance.Draining) {
	first := d.stage == checking
	if !first && d.stage != replanning {
		return
	}
	d.plan, d.planned, d.next = plan, d.now, 0
	if d.late++; !d.stale {
		d.late = 0
	}
	// In a busy cluster some pod gets a node while any plan is made: then this one has to do.
	d.stale = d.stale && d.late < mostStale
	if first {
		d.do(DrainTold{Result: Proved, Plan: plan})
	}
	why := d.options.prevents(plan.Refused, plan.Stranded(), len(plan.Pods))
	switch {
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

// prevents says why the pods of a plan may not leave, or "": some are refused, or so many of them
// are stranded.
func (o *DrainOptions) prevents(refused []rebalance.Kept, stranded, pods int) string {
	switch {
	case len(refused) > 0:
		return refusals(refused)
	case stranded > 0 && !o.AllowPending:
		return fmt.Sprintf("%d of %d pods would find no other node (--allow-pending goes on nevertheless)", stranded, pods)
	}
	return ""
}

// refusals says which pods prevent the drain, as kubectl does.
//
//	cannot delete Pods with local storage (use --delete-emptydir-data to override): web/a, web/b
func refusals(list []rebalance.Kept) string {
	var reasons []string
	names := map[string][]string{}
	for _, k := range list {
		if names[k.Why] == nil {
			reasons = append(reasons, k.Why)
		}
		names[k.Why] = append(names[k.Why], k.Namespace+"/"+k.Name)
	}
	for i, why := range reasons {
		reasons[i] = why + ": " + strings.Join(names[why], ", ")
	}
	return strings.Join(reasons, "; ")
}

// cordon makes the nodes unschedulable. One that is already needs no request.
func (d *Drainer) cordon() {
	d.stage = cordoning
	for _, name := range d.options.Nodes {
		if n := d.cluster.node(name); n != nil && n.Spec.Unschedulable {
			d.tell(nil, Cordoned, name, "already cordoned")
			continue
		}
		ticket := d.nextTicket()
		d.waiting[ticket] = name
		d.do(Cordon{Ticket: ticket, Node: name})
	}
}

// cordoned reports whether all nodes have been seen cordoned. A node that has gone meanwhile does
// not count. The answer to the request is not enough: the plan is made from what has been seen.
func (d *Drainer) cordoned() bool {
	return !slices.ContainsFunc(d.options.Nodes, func(name string) bool {
		n := d.cluster.node(name)
		return n != nil && !n.Spec.Unschedulable
	})
}

// cordonAnswered handles the answer to a request to cordon a node. Later answers come to the mover.
func (d *Drainer) cordonAnswered(e Answered) {
	name, ok := d.waiting[e.Ticket]
	if !ok {
		return
	}
	delete(d.waiting, e.Ticket)
	if e.Outcome != OK {
		d.end(fmt.Sprintf("node %s cannot be cordoned: %s", name, e.Message))
		return
	}
	d.tell(nil, Cordoned, name, "cordoned")
}
