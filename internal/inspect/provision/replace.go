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

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Replaced lists the existing nodes that could be removed, and the nodes that replace them.
type Replaced struct {
	Exchanges []Exchange `json:"exchanges"`
	// Hour and Month are the savings.
	Hour  float64 `json:"savedPerHour"`
	Month float64 `json:"savedPerMonth"`
	// Before is the hourly cost of the nodes with a known price, and Least is a lower bound on the
	// cost of any nodes for their pods; 0 if it is not known.
	Before float64 `json:"costBeforePerHour"`
	Least  float64 `json:"leastPerHour,omitempty"`
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

// mostTries limits the number of planned or proved exchanges. Each of them requires opening a world
// and draining nodes in it.
const mostTries = 64

// drainTime limits a drain's wait for disruption budgets, in virtual time.
const drainTime = 10 * time.Minute

// replacer searches for exchanges. Each exchange is tried in the initial world after all earlier
// exchanges were made. First, the method draft makes a plan under the assumption that the nodes are
// lost. Then, prove carries it out in another world: the new nodes exist, the old nodes are drained
// like by kubectl drain, with its refusals and the disruption budgets, and the scheduler places the
// successors by its scores.
//
//	draft(node-7): node-7 emptied by force, its pods need a node for 0.10, node-7 costs 0.36
//	prove:         that node is added, node-7 drained by the rules: all of its pods run
//
// An error ends the search; a reason for a node to stay does not.
type replacer struct {
	open   func() (*simulate.World, error)
	p      *Plan
	o      Options
	out    *Replaced
	prices map[string]float64 // of the nodes that may be removed, by name
	pods   map[string]int     // the numbers of their pods without those of DaemonSets
	offers map[string]int     // their offers in the catalog, if any
	moves  int                // number of pods on the nodes of all exchanges
	tries  int
}

// Replace finds exchanges. open opens a world equal to the plan's initial world.
//
// It first removes many nodes together, which saves the most, and then each node separately. The
// result is in p.Replaced.
func (p *Plan) Replace(open func() (*simulate.World, error), o Options) error {
	r := &replacer{open: open, p: p, o: o, out: &Replaced{Exchanges: []Exchange{}, Kept: []Kept{}}, prices: map[string]float64{}, pods: map[string]int{}, offers: map[string]int{}}
	w, err := r.world()
	if err != nil {
		return err
	}
	names := r.candidates(w)
	if names, err = r.replaceMany(names); err != nil {
		return err
	}
	for _, name := range names {
		switch {
		case len(names) > mostTries || r.tries >= mostTries:
			r.keep(name, "no cheaper nodes were found for its pods together with those of other nodes")
			continue
		case len(r.movable([]string{name})) == 0:
			r.keep(name, "the maximum number of moves is reached")
			continue
		}
		e, why, err := r.draft([]string{name})
		if err != nil {
			return err
		}
		if why == "" {
			if _, why, err = r.prove(e); err != nil {
				return err
			}
		}
		if why != "" {
			r.keep(name, why)
		} else {
			r.commit(e)
		}
	}
	p.Replaced = r.out
	return nil
}

// candidates returns the nodes with a known price, those first that waste the most money.
func (r *replacer) candidates(w *simulate.World) (names []string) {
	waste := map[string]float64{}
	for _, n := range w.Nodes() {
		// Nodes bought by the plan do not exist yet, so they cannot be removed.
		if slices.ContainsFunc(r.p.Nodes, func(bought Node) bool { return bought.Name == n.Name }) {
			continue
		}
		price, known := r.p.catalog.priceOf(n)
		if !known {
			r.keep(n.Name, "its price is not known: the catalog has no such node, and it has no annotation "+PriceAnnotation)
			continue
		}
		r.prices[n.Name] = price
		r.out.Before += price
		names = append(names, n.Name)
		if i := slices.IndexFunc(r.p.catalog.Offers, func(o Offer) bool { return o.sells(n) }); i >= 0 {
			r.offers[n.Name] = i
		}
		r.pods[n.Name] = len(podsOf(w.Cluster().Node(n.Name)))
		waste[n.Name] = price / (usedShare(w.Cluster().Node(n.Name)) + 0.01)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(waste[b], waste[a]) })
	return names
}

// replaceMany makes the exchange of many nodes that saves the most. It returns the nodes to be
// tried separately.
func (r *replacer) replaceMany(names []string) (left []string, err error) {
	for len(names) > 1 && r.tries < mostTries {
		drafts, err := r.draftMany(names)
		if err != nil {
			return nil, err
		}
		best, stuck, err := r.proveBest(drafts)
		switch {
		case err != nil:
			return nil, err
		case best != nil:
			r.commit(best)
			return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(best.Gone, name) }), nil
		case len(stuck) == 0:
			return names, nil
		}
		for name, why := range stuck {
			r.keep(name, why)
		}
		names = slices.DeleteFunc(names, func(name string) bool { return stuck[name] != "" })
	}
	return names, nil
}

// proveBest returns the exchange that saves the most according to its proof, or nil. If a node
// cannot be emptied, it returns such nodes instead. It proves drafts in order until the others
// cannot save much more.
func (r *replacer) proveBest(drafts []*Exchange) (best *Exchange, stuck map[string]string, err error) {
	for _, e := range drafts {
		if e.Hour < worthwhile*r.out.Before || best != nil && best.Hour > (1-2*worthwhile)*e.Hour {
			continue
		}
		var why string
		if stuck, why, err = r.prove(e); err != nil || len(stuck) > 0 {
			return nil, stuck, err
		}
		if why == "" && (best == nil || e.Hour > best.Hour) {
			best = e
		}
	}
	return best, nil, nil
}

// commit adds a proved exchange to the result.
func (r *replacer) commit(e *Exchange) {
	r.out.Exchanges = append(r.out.Exchanges, *e)
	for _, name := range e.Gone {
		r.moves += r.pods[name]
	}
	r.out.Hour += e.Hour
	r.out.Month = r.out.Hour * hoursOfMonth
}

// worthwhile is the share of the cluster's cost that an exchange of many nodes must save, and
// the share of the savings for which fewer nodes are replaced.
const worthwhile = 0.005

// draftMany drafts exchanges of many nodes: first the one with the fewest nodes that saves about
// the most, then others that may save as much. Savings grow with the number of replaced nodes until
// the remaining nodes are full, and hardly change from there.
func (r *replacer) draftMany(names []string) (drafts []*Exchange, err error) {
	const parts = 16
	names = r.movable(names)
	if len(names) == 0 {
		return nil, nil
	}
	all, _, err := r.draft(names)
	if err != nil || all == nil {
		return nil, err
	}
	fewest := all
	for least, most := 0, parts-1; least < most; {
		part := (least + most) / 2
		e, _, err := r.draft(names[:max(len(names)*part/parts, 1)])
		if err != nil {
			return nil, err
		}
		if e != nil && e.Hour > (1-worthwhile)*fewest.Hour {
			fewest, most = e, part-1
		} else {
			least = part + 1
		}
	}
	// If all nodes were new, some of them would be like existing nodes, which can stay.
	like, _, err := r.draft(r.unlike(names, all.Nodes))
	if err != nil {
		return nil, err
	}
	drafts = []*Exchange{fewest}
	for _, e := range []*Exchange{like, all} {
		if e != nil && e != fewest {
			drafts = append(drafts, e)
		}
	}
	return drafts, nil
}

// unlike returns the nodes without counterpart among the new nodes. Of nodes of the same kind, the
// last ones are kept, which waste the least.
func (r *replacer) unlike(names []string, nodes []Node) (list []string) {
	wanted := map[int]int{}
	for _, n := range nodes {
		wanted[n.offer]++
	}
	for _, name := range slices.Backward(names) {
		if offer, ok := r.offers[name]; ok && wanted[offer] > 0 {
			wanted[offer]--
			continue
		}
		list = append(list, name)
	}
	slices.Reverse(list)
	return list
}

// movable returns the first of the nodes, as many as the limit on moved pods allows.
func (r *replacer) movable(names []string) []string {
	sum := r.moves
	for i, name := range names {
		if sum += r.pods[name]; r.o.MaxMoves > 0 && sum > r.o.MaxMoves {
			return names[:i]
		}
	}
	return names
}

// usedShare returns the largest requested share of a node's CPU and memory.
func usedShare(n *cluster.Node) float64 {
	return max(percent(n.Requested.MilliCPU, n.Size.MilliCPU), percent(n.Requested.Memory, n.Size.Memory)) / 100
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
		if _, _, err := r.carryOut(w, &r.out.Exchanges[i]); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// draft returns the exchange that removes the nodes, or the reason for which it is impossible or
// saves nothing. It empties the nodes by force, so all of their pods are pending, and plans nodes
// for these pods.
func (r *replacer) draft(names []string) (e *Exchange, why string, err error) {
	r.tries++
	if r.o.Progress != nil {
		r.o.Progress(fmt.Sprintf("replacing %s", answer.List(len(names), func(i int) string { return names[i] })))
	}
	w, err := r.world()
	if err != nil {
		return nil, "", err
	}
	before := waitingNames(w)
	e = &Exchange{Gone: slices.Clone(names), Nodes: []Node{}, Moves: []Move{}}
	for _, name := range names {
		e.Hour += r.prices[name]
		if _, err := w.Do(&simulate.Operation{Drain: forced(name)}); err != nil {
			return nil, "", err
		}
	}
	w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
	planned, err := Make(w, r.p.catalog, Options{Seed: r.o.Seed, Spot: r.o.Spot, leaving: setOf(names)})
	if err != nil {
		return nil, "", err
	}
	// Pods that were already pending before do not prevent the exchange.
	for _, waiting := range planned.Pending {
		if name := (simulate.Name{Namespace: waiting.Namespace, Name: waiting.Name}); !before[name] {
			return nil, fmt.Sprintf("pod %s/%s would stay pending: %s", name.Namespace, name.Name, waiting.Message), nil
		}
	}
	e.Nodes = planned.Nodes
	if len(names) == len(r.prices) && r.isBounded(w) {
		r.out.Least = min(planned.Least, r.out.Before)
	}
	// Removed nodes save their price, minus the price of their replacements.
	if e.Hour -= planned.Hour; e.Hour <= 1e-9 {
		return nil, fmt.Sprintf("nodes for its pods would cost %.4g an hour: not less", planned.Hour), nil
	}
	return e, "", nil
}

func setOf(names []string) map[string]bool {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return set
}

// mostRepairs limits the number of times that an exchange buys more nodes because the scheduler's
// scores leave pods pending.
const mostRepairs = 6

// isBounded reports whether the bound on the cost of new nodes also holds for the existing nodes:
// no pod has another place, and no existing node costs less than the same node of the catalog.
func (r *replacer) isBounded(w *simulate.World) bool {
	if len(r.out.Kept)+len(r.p.Nodes) > 0 {
		return false
	}
	for _, n := range w.Nodes() {
		cheaper := func(o Offer) bool { return o.sells(n) && o.Price <= r.prices[n.Name]+tiny }
		if r.prices[n.Name] > 0 && !slices.ContainsFunc(r.p.catalog.Offers, cheaper) {
			return false
		}
	}
	return true
}

// prove carries out an exchange by the rules, or returns the reason for its failure and the nodes
// that cannot be emptied. It adds nodes to the exchange for pods that the scheduler's scores leave
// pending. The world of draft has pods deleted by force and proves
// nothing.
func (r *replacer) prove(e *Exchange) (stuck map[string]string, why string, err error) {
	for repairs := range mostRepairs {
		r.tries++
		w, err := r.world()
		if err != nil {
			return nil, "", err
		}
		before := waitingNames(w)
		if stuck, why, err = r.carryOut(w, e); err != nil || len(stuck) > 0 {
			return stuck, why, err
		}
		if why == "" {
			return nil, "", w.Err()
		}
		if len(before) == len(waitingNames(w)) {
			return nil, why, nil
		}
		m := newMaker(w, r.p.catalog, Options{Seed: r.o.Seed, Spot: r.o.Spot, leaving: setOf(e.Gone)})
		more, err := m.make()
		if err != nil {
			return nil, "", err
		}
		// The scores spread pods over any additional room, so buy twice as much each time.
		for _, n := range more.Nodes {
			for range 1<<repairs - 1 {
				m.node(n.offer)
			}
		}
		e.Nodes = append(e.Nodes, more.Nodes...)
		for _, n := range more.Nodes {
			e.Hour -= n.Price
		}
		if e.Hour <= 1e-9 || len(more.Nodes) == 0 {
			return nil, why, nil
		}
	}
	return nil, why, nil
}

// forced returns a drain that empties the node, regardless of budgets and kubectl's refusals.
func forced(node string) *simulate.Drain {
	return &simulate.Drain{
		Nodes: simulate.Nodes{Node: node}, IgnoreDaemonSets: true, DeleteEmptyDirData: true, Force: true, DisableEviction: true,
	}
}

// carryOut adds the new nodes, and drains and removes the old ones. It returns the reason for a
// failure, or "" after success; e.Moves then lists the pods' new places. stuck has the nodes that
// cannot be emptied, with the reason. After a failure, the world is unusable.
func (r *replacer) carryOut(w *simulate.World, e *Exchange) (stuck map[string]string, why string, err error) {
	before, departed := waitingNames(w), len(w.Departures())
	// Check the minimum sizes of node groups before any attempt.
	if why := r.p.catalog.keepsGroups(w, e); why != "" {
		return nil, why, nil
	}
	spot := shareOfSpot(w)
	var made []metav1.Object
	for _, n := range e.Nodes {
		made = append(made, r.p.catalog.Offers[n.offer].named(n.Name, w))
	}
	if _, err := w.Apply(manifest.Assemble("the exchange", made)); err != nil {
		return nil, "", err
	}
	// Pending pods may take the new nodes first, like in a live cluster.
	w.Settle()

	for _, name := range e.Gone { // so that no successor lands on another node to be removed
		if _, err := w.Do(&simulate.Operation{Cordon: &simulate.Nodes{Node: name}}); err != nil {
			return nil, "", err
		}
	}
	stuck = map[string]string{}
	for _, name := range e.Gone {
		drain := forced(name)
		// Unlike in the first world, budgets apply, and pods without a controller prevent the
		// drain.
		drain.Force, drain.DisableEviction = false, false
		done, err := w.Do(&simulate.Operation{Drain: drain})
		if err != nil {
			return nil, "", err
		}
		w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
		for _, list := range [][]simulate.Blocked{done.Drain.Refused, done.Drain.Blocked} {
			if len(list) > 0 {
				b := list[0]
				stuck[name] = fmt.Sprintf("pod %s/%s: %s", b.Namespace, b.Name,
					cmp.Or(b.Message, "disruption budget "+b.Budget+" does not let it go"))
			}
		}
		if stuck[name] != "" {
			continue
		}
		// Remove the node only when it is empty; DaemonSet pods are removed with it.
		if _, err := w.Do(&simulate.Operation{RemoveNode: &simulate.Nodes{Node: name}}); err != nil {
			return nil, "", err
		}
		w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
	}

	for _, name := range e.Gone {
		if stuck[name] != "" {
			return stuck, stuck[name], w.Err()
		}
	}
	// A previously exceeded share must not grow.
	if after := shareOfSpot(w); r.o.Spot != nil && after > max(spot, *r.o.Spot)+tiny {
		return nil, fmt.Sprintf("spot would have %.1f %% of the CPU", 100*after), nil
	}
	for name := range waitingNames(w) {
		if !before[name] {
			return nil, fmt.Sprintf("pod %s/%s would stay pending where the scheduler chooses by its scores", name.Namespace, name.Name), nil
		}
	}
	e.Moves = e.Moves[:0]
	for _, d := range w.Departures()[departed:] {
		// Departures record the successor of each pod.
		if next, node, _, ok := d.Next(); ok && slices.Contains(e.Gone, d.Node) && node != "" {
			e.Moves = append(e.Moves, Move{Pod: next.Namespace + "/" + d.Name, From: d.Node, To: node})
		}
	}
	return nil, "", w.Err()
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
		if o := &c.Offers[i]; o.sells(n) {
			return o.Price, true
		}
	}
	return 0, false
}

// sells reports whether a node is of the offer's type, zone and capacity type.
func (o *Offer) sells(n *v1.Node) bool {
	return o.Type != "" && o.Type == n.Labels[v1.LabelInstanceTypeStable] && o.Zone == n.Labels[v1.LabelTopologyZone] &&
		o.CapacityType == n.Labels[capacityTypeLabel]
}
