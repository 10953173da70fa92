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
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

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
// saves nothing. It loses the nodes, so all of their pods are pending, and plans nodes for these
// pods.
func (r *replacer) draft(names []string) (e *Exchange, why string, err error) {
	r.tries++
	r.o.say("replacing %s", answer.List(len(names), func(i int) string { return names[i] }))
	w, err := r.world()
	if err != nil {
		return nil, "", err
	}
	before := waitingNames(w)
	e = &Exchange{Gone: slices.Clone(names), Nodes: []Node{}, Moves: []Move{}}
	leaving := map[string]*v1.Node{}
	for _, name := range names {
		leaving[name] = w.Node(name)
		e.Hour += r.old[name].price
		e.MoveCost += movingCost(w.Cluster().Node(name), w.Now())
	}
	lose(w, names)
	planned, err := Make(w, r.p.catalog, Options{Seed: r.o.Seed, Spot: r.o.Spot, leaving: leaving})
	if err != nil {
		return nil, "", err
	}
	// Pods that were already pending before do not prevent the exchange.
	for _, waiting := range planned.Pending {
		if name := (simulate.Name{Namespace: waiting.Namespace, Name: waiting.Name}); !before[name] {
			return nil, fmt.Sprintf("pod %s/%s would stay pending: %s", name.Namespace, name.Name, waiting.Message), nil
		}
	}
	e.Nodes, e.Targets = planned.Nodes, plugins.Targets{}
	for _, n := range w.Cluster().SortedNodes() {
		e.Targets.Count(n)
	}
	// Removed nodes save their price, minus the price of their replacements.
	if e.Hour -= planned.Hour; e.Hour <= tiny {
		return nil, fmt.Sprintf("nodes for its pods would cost %.4g an hour: not less", planned.Hour), nil
	}
	return e, "", nil
}

// worthwhile is the share of the cluster's cost that an exchange of many nodes must save, and
// the share of the savings for which fewer nodes are replaced.
const worthwhile = 0.005

// draftMany drafts exchanges of many nodes: first one with few nodes that saves about the most,
// then the one of all nodes. Savings grow with the number of replaced nodes until the remaining
// nodes are full, and hardly change from there.
func (r *replacer) draftMany(names []string) (drafts []*Exchange, err error) {
	if names = r.movable(names); len(names) == 0 {
		return nil, nil
	}
	all, _, err := r.draft(names)
	for all == nil && err == nil && len(names) > 1 && !r.o.timeIsUp() { // new nodes may be dearer than the old ones
		names = names[:len(names)/2]
		all, _, err = r.draft(names)
	}
	if err != nil || all == nil {
		return nil, err
	}
	fewest := all
	// Fewer nodes than these save too little even if their pods need no new node.
	enough, saved := 0, 0.0
	for enough < len(names) && saved <= (1-worthwhile)*fewest.Hour {
		saved += r.old[names[enough]].price
		enough++
	}
	for _, more := range []int{0, len(names) / 50, len(names) / 10} {
		if enough+more >= len(fewest.Gone) || r.o.timeIsUp() {
			break
		}
		e, _, err := r.draft(names[:enough+more])
		if err != nil {
			return nil, err
		}
		if e != nil && e.Hour > (1-worthwhile)*fewest.Hour {
			fewest = e
			break
		}
		if e == nil || e.Hour < (1-10*worthwhile)*fewest.Hour {
			break // the prices of the nodes differ too much for this order
		}
	}
	if fewest, err = r.keepBack(fewest); err != nil || all == fewest {
		return []*Exchange{fewest}, err
	}
	return []*Exchange{fewest, all}, nil
}

// keepBack returns an exchange that saves about as much, in which removed nodes stay instead of new
// ones of their kind, so that fewer pods move.
func (r *replacer) keepBack(e *Exchange) (*Exchange, error) {
	for !r.o.timeIsUp() {
		bought := map[market]int{}
		for _, n := range e.Nodes {
			bought[market{n.Type, n.Zone, n.CapacityType}]++
		}
		names := slices.Clone(e.Gone)
		slices.Reverse(names) // the last one saves the least for each moved pod
		names = slices.DeleteFunc(names, func(name string) bool {
			bought[r.old[name].market]--
			return bought[r.old[name].market] >= 0
		})

		slices.Reverse(names)
		if len(e.Gone)-len(names) <= len(e.Gone)/50 { // not worth another draft
			return e, nil
		}
		fewer, _, err := r.draft(names)
		if err != nil || fewer == nil || r.net(fewer) < (1-worthwhile)*r.net(e) {
			return e, err
		}
		e = fewer
	}
	return e, nil
}

// prove carries out an exchange by the rules, or returns the reason for its failure and the nodes
// that cannot be emptied. The world of draft has pods deleted by force and proves nothing.
func (r *replacer) prove(e *Exchange) (stuck map[string]string, why string, err error) {
	r.tries++
	w, err := r.world()
	if err != nil {
		return nil, "", err
	}
	if stuck, why, err = r.carryOut(w, e); err == nil && why == "" {
		why = r.whyUnprofitable(e)
	}
	return stuck, why, err
}

// lose removes nodes together with their pods, regardless of budgets and kubectl's refusals. Nodes
// that are only drained would cost time: the scheduler would try each pod on each of them.
func lose(w *simulate.World, names []string) {
	w.LoseNodes(names)
	if !w.Barren() {
		w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
	}
}

// steps is the number of steps in which the proof of an exchange removes the drained nodes: after
// each removal, the engine counts all topologies again.
const steps = 4

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
	if err := cmp.Or(r.p.catalog.add(w, e.Nodes), w.Toward(e.Targets)); err != nil {
		return nil, "", err
	}

	stuck, e.MoveCost = map[string]string{}, 0
	for _, name := range e.Gone { // so that no successor lands on another node to be removed
		if _, err := w.Do(&simulate.Operation{Cordon: &simulate.Nodes{Node: name}}); err != nil {
			return nil, "", err
		}
		e.MoveCost += movingCost(w.Cluster().Node(name), w.Now())
	}
	moved := 0
	for nodes := range slices.Chunk(e.Gone, max(len(e.Gone)/steps, 1)) {
		// Unlike in the first world, budgets apply, and pods that are without a controller
		// or must not be moved prevent the drain.
		drains := make([]*simulate.Drained, len(nodes))
		for i, name := range nodes {
			drain := &simulate.Drain{Nodes: simulate.Nodes{Node: name}, IgnoreDaemonSets: true, DeleteEmptyDirData: true, Undisturbed: true}
			done, err := w.Do(&simulate.Operation{Drain: drain})
			if err != nil {
				return nil, "", err
			}
			drains[i] = done.Drain
		}
		w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
		var empty []string
		for i, name := range nodes {
			for _, b := range slices.Concat(drains[i].Refused, drains[i].Blocked) {
				stuck[name] = fmt.Sprintf("pod %s/%s: %s", b.Namespace, b.Name,
					cmp.Or(b.Message, "disruption budget "+b.Budget+" does not let it go"))
			}
			if why = cmp.Or(why, stuck[name]); stuck[name] == "" {
				empty = append(empty, name)
			}
		}
		if len(empty) == 0 {
			continue
		}
		// Remove nodes only when they are empty; DaemonSet pods are removed with them.
		if _, err := w.Do(&simulate.Operation{RemoveNode: &simulate.Nodes{Nodes: empty}}); err != nil {
			return nil, "", err
		}
		w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
		moved += len(nodes)
		r.o.say("moving pods: %d of %d nodes are empty", moved, len(e.Gone))
	}

	if why != "" {
		return stuck, why, w.Err()
	}
	// A previously exceeded share must not grow.
	if after := shareOfSpot(w); r.o.Spot != nil && after > max(spot, *r.o.Spot)+tiny {
		return nil, fmt.Sprintf("spot would have %.1f %% of the CPU", 100*after), nil
	}
	for name := range waitingNames(w) {
		if !before[name] {
			return nil, fmt.Sprintf("pod %s/%s would stay pending", name.Namespace, name.Name), nil
		}
	}
	gone := sets.New(e.Gone...)
	e.Moves = e.Moves[:0]
	for _, d := range w.Departures()[departed:] {
		// Departures record the successor of each pod.
		next, node, _, ok := d.Next()
		if !ok || !gone.Has(d.Node) || node == "" {
			continue
		}
		if f, _ := w.Find(next.Namespace, next.Name); f.Pod == nil || isMoved(f.Pod) {
			e.Moves = append(e.Moves, Move{Pod: next.Namespace + "/" + d.Name, From: d.Node, To: node})
		}
	}
	return nil, "", cmp.Or(w.Toward(nil), w.Err())
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
			if o.has(n) && slices.Contains(e.Gone, n.Name) {
				gone++
			} else if o.has(n) {
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

// isPrice excludes NaN, negative numbers, and numbers too large for the price of a node.
func isPrice(amount float64) bool { return amount >= 0 && amount < 1e9 }

// priceOf returns the hourly cost of an existing node: by its annotation, or by the offer of its
// type, zone and capacity type. An annotation without a price leaves it unknown.
func (c *Catalog) priceOf(n *v1.Node) (price float64, known bool) {
	if text, ok := n.Annotations[PriceAnnotation]; ok {
		price, err := strconv.ParseFloat(text, 64)
		return price, err == nil && isPrice(price)
	}
	for i := range c.Offers { // cheapest first
		if o := &c.Offers[i]; o.sells(n) {
			return o.Price, true
		}
	}
	return 0, false
}

// market identifies the kinds of nodes with one price.
type market struct{ instance, zone, capacity string }

func marketOf(n *v1.Node) market {
	return market{n.Labels[v1.LabelInstanceTypeStable], n.Labels[v1.LabelTopologyZone], n.Labels[capacityTypeLabel]}
}

// sells reports whether a node is of the offer's type, zone and capacity type.
func (o *Offer) sells(n *v1.Node) bool {
	return o.Type != "" && marketOf(n) == market{o.Type, o.Zone, o.CapacityType}
}

// DefaultHorizon is the default of [Options.Horizon].
const DefaultHorizon = 24 * time.Hour

// moveCost is the stated cost of moving a pod, in the currency of the catalog. It is doubled for
// each of: a pod of a StatefulSet, whose successor starts only after the pod has ended; a positive
// priority; and an age of at least settledAge, because such a pod is likely to have filled caches.
//
//	a pod of a Deployment, an hour old             0.05
//	a pod of a StatefulSet, two days old           0.2
const (
	moveCost   = 0.05
	settledAge = 24 * time.Hour
)

// movingCost returns the cost of moving all pods of a node except those of DaemonSets.
func movingCost(n *cluster.Node, now time.Time) (sum float64) {
	for _, p := range n.Pods {
		if !isMoved(p) {
			continue
		}
		cost, settled := moveCost, !p.Created.IsZero() && now.Sub(p.Created.Time()) >= settledAge
		for _, doubled := range []bool{rules.KindOf(p.Class.Controller.Reference()) == rules.StatefulSet, p.Class.Priority > 0, settled} {
			if doubled {
				cost *= 2
			}
		}
		sum += cost
	}
	return sum
}

// net returns the savings of an exchange per hour of the horizon, after the cost of its moves.
func (r *replacer) net(e *Exchange) float64 {
	return e.Hour - e.MoveCost/cmp.Or(r.o.Horizon, DefaultHorizon).Hours()
}

// whyUnprofitable returns why the savings of an exchange do not pay for its moves, or "".
func (r *replacer) whyUnprofitable(e *Exchange) string {
	switch {
	case e.Hour < r.o.MinSavings:
		return fmt.Sprintf("it would save %.4g an hour: less than %.4g", e.Hour, r.o.MinSavings)
	case r.net(e) <= 0:
		return fmt.Sprintf("its moves would cost %.4g, more than is saved within %s", e.MoveCost, cmp.Or(r.o.Horizon, DefaultHorizon))
	}
	return ""
}
