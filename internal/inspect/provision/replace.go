// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world/disruption"
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
	// Headroom is the number of additional pods whose room the plan keeps.
	Headroom int `json:"headroomPods,omitempty"`
	// Pools has the costs before by NodePool; "" is for nodes without one.
	Pools map[string]*PoolCost `json:"nodePools"`
	// Types counts the nodes with a known price before and after all exchanges, the most frequent
	// type first.
	Types []TypeCount `json:"types"`
	// Kept lists the nodes that stay, with the reason.
	Kept []Kept `json:"kept"`
}

// TypeCount is the number of nodes of an instance type before and after exchanges.
type TypeCount struct {
	Type         string `json:"type"`
	CapacityType string `json:"capacityType,omitempty"`
	Before       int    `json:"nodesBefore"`
	After        int    `json:"nodesAfter"`
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
	// MoveCost is the stated cost of its moves, paid once.
	MoveCost float64 `json:"moveCost"`
	// Pays reports whether the exchange still saves enough if these nodes stay.
	Pays func(stay []string) bool `json:"-"`
	// Targets has the intended places of all pods after the exchange.
	Targets plugins.Targets `json:"-"`
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
// successors where the draft has pods of their controller, as far as they fit there.
//
//	draft(node-7): node-7 emptied by force, its pods need a node for 0.10, node-7 costs 0.36
//	prove:         that node is added, node-7 drained by the rules: all of its pods run
//
// An error ends the search; a reason for a node to stay does not.
type replacer struct {
	open  func() (*simulate.World, error)
	p     *Plan
	o     Options
	out   *Replaced
	old   map[string]*oldNode // the nodes with a known price
	moves int                 // number of pods on the nodes of all exchanges
	tries int
	// allowed holds how many nodes may be removed now, by NodePool and reason.
	allowed map[string]int
}

// oldNode is an existing node with a known price.
type oldNode struct {
	price float64
	market
	pods int // without those of DaemonSets
}

// Replace finds exchanges. open opens a world equal to the plan's initial world.
//
// It first removes many nodes together, which saves the most, and then each node separately. The
// result is in p.Replaced.
func (p *Plan) Replace(open func() (*simulate.World, error), o Options) error {
	out := &Replaced{Exchanges: []Exchange{}, Types: []TypeCount{}, Kept: []Kept{}, Pools: map[string]*PoolCost{}}
	r := &replacer{open: open, p: p, o: o, out: out, old: map[string]*oldNode{}, allowed: map[string]int{}}
	w, err := r.world()
	if err != nil {
		return err
	}
	names := r.candidates(w)
	if err := r.poolCosts(w); err != nil {
		return err
	}
	if err := r.search(names); err != nil {
		return err
	}

	slices.SortFunc(out.Types, func(a, b TypeCount) int {
		return cmp.Or(cmp.Compare(b.Before+b.After, a.Before+a.After), cmp.Compare(a.Type, b.Type), cmp.Compare(a.CapacityType, b.CapacityType))
	})
	p.Replaced = out
	return nil
}

// search adds exchanges of the nodes to the result.
func (r *replacer) search(names []string) error {
	names, err := r.replaceMany(names)
	if err != nil {
		return err
	}
	for _, name := range names {
		switch {
		case r.o.timeIsUp():
			r.keep(name, "the time for the search was up")
			continue
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
			why = r.whyUnprofitable(e)
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
	return nil
}

// candidates returns the nodes with a known price, those first that cost the most for each pod that
// their removal would move.
func (r *replacer) candidates(w *simulate.World) (names []string) {
	saves := map[string]float64{}
	for _, n := range w.Nodes() {
		// Nodes bought by the plan do not exist yet, so they cannot be removed.
		if slices.ContainsFunc(r.p.Nodes, func(bought Node) bool { return bought.Name == n.Name }) {
			continue
		}
		price, known := r.p.catalog.priceOf(n)
		if !known {
			r.keep(n.Name, "its price is not known: the catalog has no such node, and it has no valid annotation "+PriceAnnotation)
			continue
		}
		node := w.Cluster().Node(n.Name)
		old := &oldNode{price: price, market: marketOf(n)}
		r.old[n.Name] = old
		r.out.Before += price
		r.typeOf(old.market).Before++
		r.typeOf(old.market).After++
		for _, p := range node.Pods {
			switch {
			case isMoved(p):
				old.pods++
			case p.Class.Priority == placeholderPriority:
				r.out.Headroom++
			}
		}
		if why := cmp.Or(r.o.Stay[n.Name], r.whyStays(w, n)); why != "" {
			r.keep(n.Name, why)
			continue
		}
		names = append(names, n.Name)
		saves[n.Name] = price / (movingCost(node, w.Now()) + tiny)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(saves[b], saves[a]) })
	return names
}

// whyStays returns why the node must not be disturbed, or why its NodePool keeps it, or "".
func (r *replacer) whyStays(w *simulate.World, n *v1.Node) string {
	if key := disruption.KeptBy(n); key != "" {
		return "it is annotated " + key
	}
	pool := r.p.catalog.rules[n.Labels[nodePoolLabel]]
	if pool == nil {
		return ""
	}
	reason, used := disruption.Underutilized, n.CreationTimestamp.Time
	if r.old[n.Name].pods == 0 {
		reason = disruption.Empty
	}

	for _, p := range w.Cluster().Node(n.Name).Pods {
		if created := p.Created.Time(); isMoved(p) && created.After(used) {
			used = created
		}
	}
	if why := pool.WhyStays(reason, used, w.Now()); why != "" {
		return why
	}
	allowed, known := r.allowed[pool.Name+reason]
	if !known {
		allowed = pool.Allowed(w.Nodes(), reason, w.Now())
		r.allowed[pool.Name+reason] = allowed
	}
	if allowed == 0 {
		return fmt.Sprintf("the disruption budgets of NodePool %s allow no removal now", pool.Name)
	}
	return ""
}

// replaceMany makes the exchange of many nodes that saves the most. It returns the nodes to be
// tried separately.
func (r *replacer) replaceMany(names []string) (left []string, err error) {
	for len(names) > 1 && r.tries < mostTries && (r.tries == 0 || !r.o.timeIsUp()) {
		drafts, err := r.draftMany(names)
		if err != nil {
			return nil, err
		}
		best, stuck, err := r.proveBest(drafts, names)
		switch {
		case err != nil:
			return nil, err
		case best != nil:
			r.commit(best)
			return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(best.Gone, name) }), nil
		case len(stuck) == 0:
			return names, nil
		}

		names = slices.DeleteFunc(names, func(name string) bool {
			if stuck[name] != "" {
				r.keep(name, stuck[name])
			}
			return stuck[name] != ""
		})
	}
	return names, nil
}

// proveBest returns the exchange that saves the most according to its proof, or nil. If a node
// cannot be emptied, it returns such nodes instead. It proves drafts in order until the others
// cannot save much more.
func (r *replacer) proveBest(drafts []*Exchange, names []string) (best *Exchange, stuck map[string]string, err error) {
	cost := 0.0 // without nodes that stay, whose kubelets may name any price
	for _, name := range names {
		cost += r.old[name].price
	}
	for _, e := range drafts {
		if e.Hour < worthwhile*cost || r.whyUnprofitable(e) != "" ||
			best != nil && (r.o.timeIsUp() || r.net(best) > (1-2*worthwhile)*r.net(e)) {
			continue
		}
		var why string
		if stuck, why, err = r.prove(e); err != nil || len(stuck) > 0 {
			return nil, stuck, err
		}
		if why == "" && (best == nil || r.net(e) > r.net(best)) {
			best = e
		}
	}
	return best, nil, nil
}

// commit adds a proved exchange to the result.
func (r *replacer) commit(e *Exchange) {
	e.Pays = func(stay []string) bool {
		less := *e
		for _, name := range stay {
			if old := r.old[name]; old != nil { // kubelets can write notes on other nodes
				less.Hour -= old.price
			}
		}
		return less.Hour > tiny && r.whyUnprofitable(&less) == ""
	}
	r.out.Exchanges = append(r.out.Exchanges, *e)
	for _, name := range e.Gone {
		r.moves += r.old[name].pods
		r.typeOf(r.old[name].market).After--
	}

	for _, n := range e.Nodes {
		r.typeOf(market{n.Type, n.Zone, n.CapacityType}).After++
	}
	for _, m := range e.Moves { // a later exchange may move them again
		if to := r.old[m.To]; to != nil {
			to.pods++
		}
	}
	r.out.Hour += e.Hour
	r.out.Month = r.out.Hour * hoursOfMonth
}

// typeOf returns the counts of the nodes of a type; zones do not matter.
func (r *replacer) typeOf(m market) *TypeCount {
	at := slices.IndexFunc(r.out.Types, func(t TypeCount) bool { return t.Type == m.instance && t.CapacityType == m.capacity })
	if at < 0 {
		at = len(r.out.Types)
		r.out.Types = append(r.out.Types, TypeCount{Type: m.instance, CapacityType: m.capacity})
	}
	return &r.out.Types[at]
}

// movable returns the first of the nodes, as many as the limit on moved pods allows.
func (r *replacer) movable(names []string) []string {
	sum := r.moves
	for i, name := range names {
		if sum += r.old[name].pods; r.o.MaxMoves > 0 && sum > r.o.MaxMoves {
			return names[:i]
		}
	}
	return names
}

// keep records why a node stays.
func (r *replacer) keep(node, why string) { r.out.Kept = append(r.out.Kept, Kept{node, why}) }
