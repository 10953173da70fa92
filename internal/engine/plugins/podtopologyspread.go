// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"math"
	"sync"

	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// PodTopologySpread spreads similar pods over the values of node labels. Hard constraints
// (DoNotSchedule) reject nodes; soft constraints (ScheduleAnyway) score nodes. Pods without any
// constraint receive default constraints, which select the pods of their Services and of their
// controller.
//
// [SpreadConstraint] implements the arithmetic. This file counts the pods, from scratch for each
// pending pod. With maxSkew 1 over zones, and a pod selected by its own selector:
//
//	zone a counts 2, b 1, c 1: the least is 1
//	a: 2 + 1 - 1 = 2 > 1  -> rejected
//	b: 1 + 1 - 1 = 1      -> passes, and so does c
//	with a zone d that has nodes and no pods, the least is 0, and only d passes
type PodTopologySpread struct {
	// defaults apply to pods without a constraint. They lack a selector, which is filled in for
	// each pod's application.
	defaults []v1.TopologySpreadConstraint
	// system is set if the default constraints are the built-in constraints, which also count and
	// score nodes that lack one of the keys.
	system bool
	// Compare enables the toleration operators Gt and Lt, as in TaintToleration.
	Compare bool
}

// Codes of PodTopologySpread.
const (
	CodeTopologySpread             = "TopologySpread"
	CodeTopologySpreadLabelMissing = "TopologySpreadLabelMissing"
)

// Rejections of PodTopologySpread.
var (
	SpreadExceeded     = &Rejection{Code: CodeTopologySpread, Reasons: []string{"node(s) didn't match pod topology spread constraints"}}
	SpreadLabelMissing = &Rejection{
		Code: CodeTopologySpreadLabelMissing, Unresolvable: true,
		Reasons: []string{"node(s) didn't match pod topology spread constraints (missing required label)"},
	}
)

// systemSpread are upstream's built-in constraints. The skew only adds a constant to a score (see
// [SpreadConstraint.Part]).
var systemSpread = []v1.TopologySpreadConstraint{
	{TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 5},
}

// NewPodTopologySpread makes the plugin; nil args select the built-in default constraints.
func NewPodTopologySpread(args *config.PodTopologySpreadArgs) (*PodTopologySpread, error) {
	args, err := completeArgs(args)
	if err != nil {
		return nil, err
	}
	if args.DefaultingType == config.ListDefaulting {
		return &PodTopologySpread{defaults: args.DefaultConstraints}, nil
	}
	return &PodTopologySpread{defaults: systemSpread, system: true}, nil
}

// Name implements [Filter] and [Scorer].
func (s *PodTopologySpread) Name() string { return "PodTopologySpread" }

// Reads implements [Filter]. Labels and identity determine the domain, taints determine whether a
// node counts, and the counts include the pods of all other nodes.
func (s *PodTopologySpread) Reads() Part { return Labels | Taints | Identity | Contents | Others }

// Spreader is a filter or a scorer that counts, for each of a pod's constraints, the selected pods
// in each domain of its topology key. The fast path keeps such counts itself, and requests the
// constraints instead of the verdicts.
type Spreader interface {
	Name() string
	// Hard returns the constraints that reject nodes, or nil.
	Hard(c *cluster.Cluster, p *cluster.Pod) ([]SpreadConstraint, error)
	// Soft returns the constraints that score nodes. If everyKey is true, nodes that lack one of
	// the keys are neither counted nor scored.
	Soft(c *cluster.Cluster, p *cluster.Pod) (constraints []SpreadConstraint, everyKey bool, err error)
}

// Hard returns the pod's constraints that reject nodes, in their order. The error fails the
// attempt, and has upstream's text, which ends up in the pod's condition.
func (s *PodTopologySpread) Hard(c *cluster.Cluster, p *cluster.Pod) ([]SpreadConstraint, error) {
	constraints, err := s.constraintsOf(c, p, v1.DoNotSchedule)
	if err == nil {
		return constraints, nil
	}
	if len(p.Spec().TopologySpreadConstraints) > 0 {
		return nil, fmt.Errorf("get constraints from pod: obtaining pod's hard topology spread constraints: %w", err)
	}
	return nil, fmt.Errorf("get constraints from pod: setting default hard topology spread constraints: %w", err)
}

// Soft returns the pod's constraints that score nodes, in their order. If everyKey is true, nodes
// that lack one of the keys are neither counted nor scored.
func (s *PodTopologySpread) Soft(c *cluster.Cluster, p *cluster.Pod) (constraints []SpreadConstraint, everyKey bool, err error) {
	own := len(p.Spec().TopologySpreadConstraints) > 0
	constraints, err = s.constraintsOf(c, p, v1.ScheduleAnyway)
	switch {
	case err == nil:
		return constraints, own || !s.system, nil
	case own:
		return nil, false, fmt.Errorf("calculating preScoreState: obtaining pod's soft topology spread constraints: %w", err)
	}
	return nil, false, fmt.Errorf("calculating preScoreState: setting default soft topology spread constraints: %w", err)
}

// constraintsOf returns the pod's own constraints of one action, or the default constraints of that
// action if the pod defines no constraints at all. Defaults apply only to pods that belong to an
// application: for all other pods the selector would be empty.
func (s *PodTopologySpread) constraintsOf(c *cluster.Cluster, p *cluster.Pod,
	action v1.UnsatisfiableConstraintAction) ([]SpreadConstraint, error) {
	if own := p.Spec().TopologySpreadConstraints; len(own) > 0 {
		return s.readConstraints(own, p.Spec().SpreadSelectors, action, p)
	}
	selector := defaultSelector(c, p.Class)
	if selector.Empty() {
		return nil, nil
	}
	constraints, err := s.readConstraints(s.defaults, nil, action, p)
	if err != nil {
		return nil, err
	}
	for i := range constraints {
		constraints[i].Selector = selector
	}
	return constraints, nil
}

// readConstraints parses a list of constraints for the pod. selectors holds the selectors already
// parsed, and must be nil for default constraints.
func (s *PodTopologySpread) readConstraints(
	list []v1.TopologySpreadConstraint, selectors []*rules.Selector, action v1.UnsatisfiableConstraintAction, p *cluster.Pod,
) ([]SpreadConstraint, error) {
	constraints, err := readSpread(list, selectors, action, p.Class.Labels)
	for i := range constraints {
		constraints[i].compare = s.Compare
	}
	return constraints, err
}

// Filter rejects nodes in domains where the pod would exceed a constraint's skew. Counting costs a
// pass over all pods of the cluster for every call; package decide keeps counts instead.
func (s *PodTopologySpread) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	constraints, err := s.Hard(c, p)
	if err != nil {
		return Judge{Err: err}
	}
	if len(constraints) == 0 {
		return Judge{}
	}

	domains := countHard(c, p, constraints)
	self, least := make([]int64, len(constraints)), make([]int64, len(constraints))
	for i := range constraints {
		lowest := NoDomain
		for _, count := range domains[i] {
			lowest = min(lowest, count)
		}
		self[i], least[i] = constraints[i].Self(p.Class), constraints[i].Least(lowest, len(domains[i]))
	}

	return Judge{Node: func(n *cluster.Node) *Rejection {
		for i := range constraints {
			// Check for each missing key together with its constraint, not for all missing keys
			// first, to report upstream's reason.
			value, ok := n.Lookup(constraints[i].TopologyKey)
			if !ok {
				return SpreadLabelMissing
			}
			if !constraints[i].Allows(domains[i][value], self[i], least[i]) {
				return SpreadExceeded
			}
		}
		return nil
	}}
}

// countHard counts pods by constraint and domain. Domains without such pods are included with 0,
// for the minimum of all counts. A node that lacks one of the keys is excluded from the counts of
// all constraints, including constraints whose key the node has.
func countHard(c *cluster.Cluster, p *cluster.Pod, constraints []SpreadConstraint) []map[string]int64 {
	domains := make([]map[string]int64, len(constraints))
	for i := range domains {
		domains[i] = map[string]int64{}
	}
	inclusion, namespace := NewSpreadInclusion(p), p.Namespace()
	known := map[*cluster.PodClass][]int{} // indices of the constraints that count the pods of a class
	counts := make([]int64, len(constraints))
	for _, n := range c.Nodes {
		if n == nil || !HasKeys(n, constraints) {
			continue
		}
		clear(counts)
		for _, o := range n.Pods {
			// A terminating pod is about to free its place, so it must not delay its replacement
			// (kubernetes/kubernetes#87621).
			if o.Terminating {
				continue
			}
			counting, seen := known[o.Class]
			if !seen {
				for i := range constraints {
					if constraints[i].Counts(o.Class, namespace) {
						counting = append(counting, i)
					}
				}
				known[o.Class] = counting
			}
			for _, i := range counting {
				counts[i]++
			}
		}
		for i := range constraints {
			if inclusion.Includes(&constraints[i], n) {
				domains[i][n.Get(constraints[i].TopologyKey)] += counts[i]
			}
		}
	}
	return domains
}

// spreadCounter counts a node's pods selected by a constraint, and caches the result per class,
// because classes are far fewer than pods. It is safe for concurrent use.
type spreadCounter struct {
	constraints []SpreadConstraint
	namespace   string
	counts      []sync.Map // by constraint: *cluster.PodClass to bool
}

// countPods counts the node's pods selected by the constraint with the given index. Two goroutines
// may compute the same entry concurrently; the second overwrites it with an equal value.
func (s *spreadCounter) countPods(constraint int, n *cluster.Node) (count int64) {
	for _, p := range n.Pods {
		if p.Terminating {
			continue
		}
		counts, known := s.counts[constraint].Load(p.Class)
		if !known {
			counts = s.constraints[constraint].Counts(p.Class, s.namespace)
			s.counts[constraint].Store(p.Class, counts)
		}
		if counts.(bool) {
			count++
		}
	}
	return count
}

// Score prefers domains with few selected pods. The raw score grows with the number of pods in a
// domain; [SpreadNormalized] reverses the order.
func (s *PodTopologySpread) Score(c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) Scoring {
	constraints, everyKey, err := s.Soft(c, p)
	if err != nil {
		return Scoring{Err: err}
	}
	if len(constraints) == 0 {
		return Scoring{}
	}

	counter := &spreadCounter{constraints, p.Namespace(), make([]sync.Map, len(constraints))}
	domains, weights := feasibleDomains(constraints, feasible, everyKey)
	countSoft(c, p, counter, domains, everyKey)
	// Normalize ignores these nodes as well: their raw score of 0 would be the best.
	ignored := func(n *cluster.Node) bool { return everyKey && !HasKeys(n, constraints) }
	return Scoring{
		Node: func(n *cluster.Node) (int64, error) {
			if ignored(n) {
				return 0, nil
			}
			var sum float64
			for i := range constraints {
				value, ok := n.Lookup(constraints[i].TopologyKey)
				switch {
				case !ok:
				// The node is its own domain: counting its pods here saves a map of all nodes.
				case constraints[i].PerNode():
					sum += constraints[i].Part(counter.countPods(i, n), weights[i])
				default:
					sum += constraints[i].Part(domains[i][value], weights[i])
				}
			}
			return SpreadScore(sum), nil
		},
		Normalize: func(feasible []*cluster.Node, scores []int64) { normalizeSpread(feasible, scores, ignored) },
	}
}

// feasibleDomains lists the domains of the feasible nodes by constraint, and weighs each constraint
// by their number. Without everyKey, nodes that lack a key form one domain, with the empty value.
// Constraints on the host name list no domains: their pods are counted when the node is scored.
func feasibleDomains(constraints []SpreadConstraint, feasible []*cluster.Node,
	everyKey bool) (domains []map[string]int64, weights []float64) {
	domains, weights = make([]map[string]int64, len(constraints)), make([]float64, len(constraints))
	for i := range domains {
		domains[i] = map[string]int64{}
	}

	scored := 0
	for _, n := range feasible {
		if everyKey && !HasKeys(n, constraints) {
			continue
		}
		scored++
		for i := range constraints {
			if !constraints[i].PerNode() {
				domains[i][n.Get(constraints[i].TopologyKey)] = 0
			}
		}
	}

	for i := range constraints {
		size := len(domains[i])
		if constraints[i].PerNode() {
			size = scored
		}
		weights[i] = constraints[i].Weight(size)
	}
	return domains, weights
}

// countSoft counts the pods of all nodes, feasible or not, in the domains of the feasible nodes.
func countSoft(c *cluster.Cluster, p *cluster.Pod, counter *spreadCounter, domains []map[string]int64, everyKey bool) {
	inclusion, constraints := NewSpreadInclusion(p), counter.constraints
	for _, n := range c.Nodes {
		if n == nil || everyKey && !HasKeys(n, constraints) {
			continue
		}
		for i := range constraints {
			value := n.Get(constraints[i].TopologyKey)
			// Domains without a feasible node are not scored, and need no count.
			if _, ok := domains[i][value]; ok && inclusion.Includes(&constraints[i], n) {
				domains[i][value] += counter.countPods(i, n)
			}
		}
	}
}

// normalizeSpread scales the scores of all feasible nodes to 0..MaxScore. Ignored nodes get the
// lowest score, and do not affect the range.
func normalizeSpread(feasible []*cluster.Node, scores []int64, ignored func(*cluster.Node) bool) {
	var lowest, highest int64 = math.MaxInt64, 0
	for i, n := range feasible {
		if !ignored(n) {
			lowest, highest = min(lowest, scores[i]), max(highest, scores[i])
		}
	}
	for i, n := range feasible {
		if ignored(n) {
			scores[i] = 0
		} else {
			scores[i] = SpreadNormalized(scores[i], lowest, highest)
		}
	}
}

// Fixes implements Fixer.
func (*PodTopologySpread) Fixes() []Fix { return []Fix{RelaxSpread} }
