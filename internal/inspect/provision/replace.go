// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Replaced lists the existing nodes that could be removed, and the nodes that replace them.
type Replaced struct {
	Exchanges []Exchange `json:"exchanges"`
	// Hour and Month are the savings.
	Hour  float64 `json:"savedPerHour"`
	Month float64 `json:"savedPerMonth"`
	// Kept lists the nodes that stay, with the reason.
	Kept []Kept `json:"kept"`
}

// Exchange is a step: first buy the new nodes, if any, then drain the old nodes one after the
// other. Each exchange is proved under the assumption that the earlier exchanges in the list were
// made; it may fail in another order.
type Exchange struct {
	// Gone lists the nodes to remove after the new nodes were added. Without new nodes, the pods
	// have room on the remaining nodes.
	Gone  []string `json:"gone"`
	Nodes []Node   `json:"nodes"`
	Moves []Move   `json:"moves"`
	Hour  float64  `json:"savedPerHour"`
}

// Move is an evicted pod and the node of its successor.
type Move struct {
	Pod  string `json:"pod"`
	From string `json:"from"`
	To   string `json:"to"`
}

// Kept is a node that stays.
type Kept struct {
	Node string `json:"node"`
	Why  string `json:"why"`
}

// mostReplaced limits the number of examined nodes, the most expensive first. Each of them requires
// opening a world, planning in it and draining twice.
const mostReplaced = 64

// drainTime limits a drain's wait for disruption budgets, in virtual time.
const drainTime = 10 * time.Minute

// replacer searches for exchanges. Each exchange is tried in the initial world after all earlier
// exchanges were made. First, the method try makes a plan under the assumption that the nodes are
// lost. Then it proves the result in another world: the new nodes exist, the old nodes are drained
// like by kubectl drain, with its refusals and the disruption budgets, and the scheduler places the
// successors by its scores.
//
//	try(node-7): world 1: node-7 emptied by force, its pods need a node for 0.10, node-7 costs 0.36
//	             world 2: that node is added, node-7 drained by the rules: all of its pods run
//
// An error ends the search; a reason for a node to stay does not.
type replacer struct {
	open func() (*simulate.World, error)
	p    *Plan
	o    Options
	out  *Replaced
}

// Replace finds exchanges. open opens a world equal to the plan's initial world.
//
// It first tries to remove all nodes together, which saves the most, and then each node separately.
// The result is in p.Replaced.
func (p *Plan) Replace(open func() (*simulate.World, error), o Options) error {
	r := &replacer{open: open, p: p, o: o, out: &Replaced{Exchanges: []Exchange{}, Kept: []Kept{}}}
	w, err := r.world()
	if err != nil {
		return err
	}

	prices := map[string]float64{}
	var names []string
	for _, n := range w.Nodes() {
		// Nodes bought by the plan do not exist yet, so they cannot be removed.
		if slices.ContainsFunc(p.Nodes, func(bought Node) bool { return bought.Name == n.Name }) {
			continue
		}
		price, known := p.catalog.priceOf(n)
		if !known {
			r.keep(n.Name, "its price is not known: the catalog has no such node, and it has no annotation "+PriceAnnotation)
			continue
		}
		prices[n.Name] = price
		names = append(names, n.Name)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(prices[b], prices[a]) })
	for _, name := range names[min(len(names), mostReplaced):] {
		r.keep(name, fmt.Sprintf("only the %d most expensive nodes are considered", mostReplaced))
	}

	// In a far too large cluster, removing all of them together saves the most.
	names = names[:min(len(names), mostReplaced)]
	if len(names) > 1 {
		if why, err := r.try(names, prices); err != nil || why == "" {
			p.Replaced = r.out
			return err
		}
	}
	for _, name := range names {
		why, err := r.try([]string{name}, prices)
		if err != nil {
			return err
		}
		if why != "" {
			r.keep(name, why)
		}
	}
	p.Replaced = r.out
	return nil
}

// keep records why a node stays.
func (r *replacer) keep(node, why string) { r.out.Kept = append(r.out.Kept, Kept{node, why}) }

// world opens the world, makes the plan's purchases, and performs the exchanges found so far. Each
// try needs a new world, because a drain cannot be undone.
func (r *replacer) world() (*simulate.World, error) {
	w, err := r.open()
	if err != nil {
		return nil, err
	}
	if _, err := Make(w, r.p.catalog, Options{Seed: r.o.Seed, Spot: r.o.Spot}); err != nil {
		return nil, err
	}
	for i := range r.out.Exchanges {
		if _, err := r.carryOut(w, &r.out.Exchanges[i]); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// try tries to remove nodes. It records the exchange and returns "", or returns the reason the
// nodes cannot be removed.
//
// The first world plans: the nodes are drained by force, so all of their pods are pending, and
// nodes are bought for these pods. The second world proves the plan, under the rules of a real
// drain.
func (r *replacer) try(names []string, prices map[string]float64) (why string, err error) {
	if r.o.Progress != nil {
		r.o.Progress(fmt.Sprintf("replacing %s", names[0]))
	}
	w, err := r.world()
	if err != nil {
		return "", err
	}
	before := waitingNames(w)
	e := &Exchange{Gone: names, Nodes: []Node{}, Moves: []Move{}}
	for _, name := range names {
		e.Hour += prices[name]
		if _, err := w.Do(&simulate.Operation{Drain: forced(name)}); err != nil {
			return "", err
		}
	}
	w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
	leaving := map[string]bool{}
	for _, name := range names {
		leaving[name] = true
	}
	planned, err := Make(w, r.p.catalog, Options{Seed: r.o.Seed, Spot: r.o.Spot, leaving: leaving})
	if err != nil {
		return "", err
	}
	// Pods that were already pending before do not prevent the exchange.
	for _, waiting := range planned.Pending {
		if name := (simulate.Name{Namespace: waiting.Namespace, Name: waiting.Name}); !before[name] {
			return fmt.Sprintf("pod %s/%s would stay pending: %s", name.Namespace, name.Name, waiting.Message), nil
		}
	}
	e.Nodes = planned.Nodes
	// Removed nodes save their price, minus the price of their replacements.
	if e.Hour -= planned.Hour; e.Hour <= 1e-9 {
		return fmt.Sprintf("nodes for its pods would cost %.4g an hour: not less", planned.Hour), nil
	}

	// The first world has pods deleted by force and proves nothing.
	if w, err = r.world(); err != nil {
		return "", err
	}
	if why, err = r.carryOut(w, e); err != nil || why != "" {
		return why, err
	}
	r.out.Exchanges = append(r.out.Exchanges, *e)
	r.out.Hour += e.Hour
	r.out.Month = r.out.Hour * hoursOfMonth
	return "", w.Err()
}

// forced returns a drain that empties the node, regardless of budgets and kubectl's refusals.
func forced(node string) *simulate.Drain {
	return &simulate.Drain{
		Nodes: simulate.Nodes{Node: node}, IgnoreDaemonSets: true, DeleteEmptyDirData: true, Force: true, DisableEviction: true,
	}
}

// carryOut adds the new nodes, and drains and removes the old ones. It returns the reason for a
// failure, or "" after success; e.Moves then lists the pods' new places. After a failure, the world
// is unusable.
func (r *replacer) carryOut(w *simulate.World, e *Exchange) (why string, err error) {
	before, departed := waitingNames(w), len(w.Departures())
	// Check the minimum sizes of node groups before any attempt.
	if why := r.p.catalog.keepsGroups(w, e); why != "" {
		return why, nil
	}
	spot := shareOfSpot(w)
	var made []metav1.Object
	for _, n := range e.Nodes {
		made = append(made, r.p.catalog.Offers[n.offer].named(n.Name, w))
	}
	if _, err := w.Apply(manifest.Assemble("the exchange", made)); err != nil {
		return "", err
	}
	// Pending pods may take the new nodes first, like in a live cluster.
	w.Settle()

	for _, name := range e.Gone { // so that no successor lands on another node to be removed
		if _, err := w.Do(&simulate.Operation{Cordon: &simulate.Nodes{Node: name}}); err != nil {
			return "", err
		}
	}
	for _, name := range e.Gone {
		drain := forced(name)
		// Unlike in the first world, budgets apply, and pods without a controller prevent the
		// drain.
		drain.Force, drain.DisableEviction = false, false
		done, err := w.Do(&simulate.Operation{Drain: drain})
		if err != nil {
			return "", err
		}
		w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
		for _, list := range [][]simulate.Blocked{done.Drain.Refused, done.Drain.Blocked} {
			if len(list) > 0 {
				b := list[0]
				return fmt.Sprintf("pod %s/%s: %s", b.Namespace, b.Name,
					cmp.Or(b.Message, "disruption budget "+b.Budget+" does not let it go")), nil
			}
		}
		// Remove the node only when it is empty; DaemonSet pods are removed with it.
		if _, err := w.Do(&simulate.Operation{RemoveNode: &simulate.Nodes{Node: name}}); err != nil {
			return "", err
		}
		w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
	}

	// A previously exceeded share must not grow.
	if after := shareOfSpot(w); r.o.Spot != nil && after > max(spot, *r.o.Spot)+tiny {
		return fmt.Sprintf("spot would have %.1f %% of the CPU", 100*after), nil
	}
	for name := range waitingNames(w) {
		if !before[name] {
			return fmt.Sprintf("pod %s/%s would stay pending where the scheduler chooses by its scores", name.Namespace, name.Name), nil
		}
	}
	e.Moves = e.Moves[:0]
	for _, d := range w.Departures()[departed:] {
		// Departures record the successor of each pod.
		if next, node, _, ok := d.Next(); ok && slices.Contains(e.Gone, d.Node) && node != "" {
			e.Moves = append(e.Moves, Move{Pod: next.Namespace + "/" + d.Name, From: d.Node, To: node})
		}
	}
	return "", w.Err()
}

// keepsGroups describes a node group with too few nodes after an exchange, or returns "".
func (c *Catalog) keepsGroups(w *simulate.World, e *Exchange) string {
	for i := range c.Offers {
		o := &c.Offers[i]
		if o.Least == 0 {
			continue
		}

		left, gone := 0, 0
		for _, n := range w.Nodes() {
			switch {
			case !o.has(n):
			case slices.Contains(e.Gone, n.Name):
				gone++
			default:
				left++
			}
		}
		for _, n := range e.Nodes {
			if n.offer == i {
				left++
			}
		}

		// A group that already has too few nodes does not prevent an exchange that removes none of
		// its nodes.
		if gone > 0 && left < o.Least {
			return fmt.Sprintf("node group %s must keep %d nodes", o.Pool, o.Least)
		}
	}
	return ""
}

// waitingNames returns the pods of a world without a node.
func waitingNames(w *simulate.World) map[simulate.Name]bool {
	names := map[simulate.Name]bool{}
	for _, f := range w.Each() {
		if f.Pod != nil && f.Pod.NodeName == "" {
			names[simulate.Name{Namespace: f.Object.Namespace, Name: f.Object.Name}] = true
		}
	}
	return names
}

// priceOf returns the hourly cost of an existing node: by its annotation, or by the offer of its
// type, zone and capacity type. A non-numeric annotation leaves the price unknown.
func (c *Catalog) priceOf(n *v1.Node) (price float64, known bool) {
	if text, ok := n.Annotations[PriceAnnotation]; ok {
		price, err := strconv.ParseFloat(text, 64)
		return price, err == nil
	}
	for i := range c.Offers { // cheapest first
		o := &c.Offers[i]
		if o.Type != "" && o.Type == n.Labels[v1.LabelInstanceTypeStable] && o.Zone == n.Labels[v1.LabelTopologyZone] &&
			o.CapacityType == n.Labels[capacityTypeLabel] {
			return o.Price, true
		}
	}
	return 0, false
}
