// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// layer divides the nodes into the domains of one topology key. Groups with the same key that
// exclude the same nodes share a layer. A layer depends only on nodes, so it outlives all changes
// of pods; see ledger.recountTaints for changes of nodes.
type layer struct {
	domain []int32 // number of the node's domain, by node index; -1 if the node is in none
	many   int     // number of domains
}

// group counts the pods of one constraint: a spread constraint, or a term of pod affinity or
// anti-affinity. Its excess is computed from sums updated with each added or removed pod. A scan of
// the domains would be slow: a constraint by host name has as many domains as nodes.
//
// The excess is defined by the kind of constraint:
//
//	spread         zones a, b, c count 4, 2, 1; maxSkew 1: at most 1+1 = 2, excess (4-2) + 0 + 0 = 2
//	anti-affinity  3 pods that repel each other on one node: 3*3 - 3 = 6 ordered pairs
//	affinity       2 pods that look for a cache in a zone without one: 2
//
// spread and include are nil for a term, term is nil for a spread constraint.
type group struct {
	text    string // description for the user
	spread  *plugins.SpreadConstraint
	include *plugins.SpreadInclusion
	space   string
	term    *cluster.Term
	anti    bool
	placed  string // identifies the assignment of nodes to domains; equal for groups of one layer

	// counts omits domains without pods: most domains of a constraint by host name are empty.
	// levels includes them, with a count of 0.
	*layer
	counts map[int32]domain // by domain; only domains with a pod
	excess int64

	// Sums over all domains.
	held, counted int64
	meeting       int64   // for anti-affinity: the number of violating pairs
	unmet, alone  int64   // for affinity: number of unmatched pods, and of domains with a pod that matches only itself
	levels        []level // for spread, the lowest first
}

// level is the number of domains of a spread constraint with the same count of pods.
type level struct{ pods, domains int64 }

// domain has the counts of one value of the topology key. The value itself is not stored: a layer
// only numbers the domains.
type domain struct {
	held, counted, both int64 // number of pods with the constraint, of pods counted by it, and of pods with both properties
}

// layerFor returns the layer of a group, which may have been built for another group.
func (l *ledger) layerFor(g *group) *layer {
	known := l.layers[g.placed]
	if known != nil {
		return known
	}

	known = &layer{domain: make([]int32, len(l.w.c.Nodes))}
	numbers := map[string]int32{}
	for i, n := range l.w.c.Nodes {
		known.domain[i] = -1
		if n == nil {
			continue
		}
		value, ok := n.Lookup(g.topologyKey())
		// A node without the key is in no domain. For spread, neither is a node excluded by
		// nodeAffinityPolicy or nodeTaintsPolicy, as in the scheduler's plugin: the pods do not fit
		// there, and its domain would lower the minimum.
		if !ok || g.spread != nil && !g.include.Includes(g.spread, n) {
			continue
		}
		number, seen := numbers[value]
		if !seen {
			number = int32(len(numbers))
			numbers[value] = number
		}
		known.domain[i] = number
	}

	known.many = len(numbers)
	l.layers[g.placed] = known
	return known
}

// countsClass reports whether the group counts the pods of a class: whether its selector matches
// their labels, in the namespaces it covers.
func (g *group) countsClass(class *cluster.PodClass, c *cluster.Cluster) bool {
	if g.spread != nil {
		return g.spread.Counts(class, g.space)
	}
	return g.term.Matches(class, c.NamespaceLabels(class.Namespace))
}

// topologyKey returns the node label that defines the domains.
func (g *group) topologyKey() string {
	if g.spread != nil {
		return g.spread.TopologyKey
	}
	return g.term.TopologyKey
}

// startCounting resets the group to the domains of a layer, without pods.
func (g *group) startCounting(of *layer) {
	g.layer, g.counts, g.levels = of, map[int32]domain{}, nil
	g.held, g.counted, g.meeting, g.unmet, g.alone = 0, 0, 0, 0, 0
	if g.spread != nil && of.many > 0 {
		g.levels = []level{{0, int64(of.many)}}
	}
}

// countedWith returns the group's count of pods in the domain of a node; ok is false if the node is
// in no domain.
func (g *group) countedWith(n *cluster.Node) (pods int64, ok bool) {
	if int(n.Index) >= len(g.domain) || g.domain[n.Index] < 0 {
		return 0, false
	}
	return g.counts[g.domain[n.Index]].counted, true
}

// movePod counts an added or removed pod. It returns false if the node is in no domain.
func (g *group) movePod(n *cluster.Node, own, counts bool, by int64) bool {
	if int(n.Index) >= len(g.domain) || g.domain[n.Index] < 0 {
		return false
	}

	number := g.domain[n.Index]
	d := g.counts[number]
	// The domain's old contribution is subtracted and its new one added. The sums are not linear in
	// the counts, so they cannot be updated by adding one pod.
	g.addDomain(d, -1)
	if own {
		d.held += by
	}
	if counts {
		d.counted += by
	}
	if own && counts {
		d.both += by
	}
	g.addDomain(d, 1)

	// An empty domain must be deleted: otherwise groups by host name would grow with each node used
	// in a trial.
	if d == (domain{}) {
		delete(g.counts, number)
	} else {
		g.counts[number] = d
	}
	return true
}

// addDomain adds a domain to the sums (by = 1) or removes it (by = -1).
func (g *group) addDomain(d domain, by int64) {
	g.held += by * d.held
	g.counted += by * d.counted
	// Each holder of the term meets each pod matched by it, but not itself.
	g.meeting += by * (d.held*d.counted - d.both)

	switch {
	case d.counted == 0:
		g.unmet += by * d.held
	case d.counted == 1 && d.both == 1:
		g.alone += by
	}
	if g.spread != nil {
		g.addToLevel(d.counted, by)
	}
}

// addToLevel adds domains with this count of pods.
func (g *group) addToLevel(pods, domains int64) {
	at, known := slices.BinarySearchFunc(g.levels, pods, func(l level, pods int64) int { return cmp.Compare(l.pods, pods) })
	switch {
	case !known:
		g.levels = slices.Insert(g.levels, at, level{pods, domains})
	case g.levels[at].domains+domains == 0:
		g.levels = slices.Delete(g.levels, at, at+1)
	default:
		g.levels[at].domains += domains
	}
}

// measureExcess returns the current excess of the constraint. It does not scan the domains; for
// spread, it scans only the distinct counts.
func (g *group) measureExcess() int64 {
	switch {
	case g.spread != nil:
		return g.measureSkew()
	case g.anti:
		return g.meeting
	// The scheduler lets the first pod of a self-affine group start anywhere, so a single such pod
	// in the cluster violates nothing. If more of them run in other domains, a pod that is alone in
	// its domain is a violation.
	case g.counted > 1:
		return g.unmet + g.alone
	}
	return g.unmet
}

// measureSkew returns the surplus pods of a spread constraint, over all domains: the pods beyond
// the lowest count plus maxSkew. With fewer domains than minDomains the lowest counts as 0.
func (g *group) measureSkew() (excess int64) {
	if g.held == 0 {
		return 0
	}
	lowest := plugins.NoDomain
	if len(g.levels) > 0 {
		lowest = g.levels[0].pods
	}
	most := g.spread.Least(lowest, g.many) + int64(g.spread.MaxSkew)
	for _, l := range slices.Backward(g.levels) {
		if l.pods <= most {
			break
		}
		excess += (l.pods - most) * l.domains
	}
	return excess
}
