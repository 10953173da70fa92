package provision

import (
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// spreads counts, for the hard spread constraints of pending pods, the pods that they select in
// each domain. A plan that keeps to the counts is rarely corrected by the engine, which alone
// decides: policies of constraints about nodes are left to it.
//
//	zone a has 3 web pods, b has 2, c has 2; maxSkew 1
//	a may have one more if 3 + 1 - 2 <= 1: no. b may: 2 + 1 - 2 <= 1.
//
// It is used twice: to choose zones before the packing (zones.go), and to choose nodes after it
// (assign.go). In between it is counted anew, since the first choice is only a wish.
type spreads struct {
	// known are by topology key, namespace and selector: constraints of several classes share a
	// count. byClass is filled as classes are asked about.
	known   map[string]*spread
	byClass map[*cluster.PodClass]*spreading
}

// spread is a selector with a topology key.
type spread struct {
	key, namespace string
	selector       *rules.Selector
	counts         map[string]int // by domain
	// domains saves a look at all domains for the lowest count: a spread over hosts has one for
	// each node.
	domains map[int]int // by count: how many domains have it
}

// spreading is what a class has to do with spreads.
type spreading struct {
	own     []ownSpread
	counted []*spread // those that count its pods
}

// self is 1 if the pod counts itself, and 0 if its selector does not match its own labels; skew is
// maxSkew.
type ownSpread struct {
	*spread
	self, skew int
}

// newSpreads counts what is placed. Nodes that are there for a trial do not count. It is about the
// constraints of these pods. Those of pods that are placed no longer bind.
func newSpreads(w *simulate.World, pods []*cluster.Pod, trial func(node string) bool) *spreads {
	s := &spreads{known: map[string]*spread{}, byClass: map[*cluster.PodClass]*spreading{}}
	for _, p := range pods {
		s.learn(p.Class)
	}
	s.countAnew(w, trial)
	return s
}

// countAnew forgets what was counted, and counts what is placed.
func (s *spreads) countAnew(w *simulate.World, trial func(node string) bool) {
	if len(s.known) == 0 {
		return
	}
	for _, k := range s.known {
		k.counts, k.domains = map[string]int{}, map[int]int{}
	}

	for _, n := range w.Cluster().Nodes {
		if n == nil || trial(n.Name) {
			continue
		}
		labels := n.Object().Labels
		s.add(labels)
		for _, p := range n.Pods {
			if !p.Terminating {
				s.count(p.Class, labels)
			}
		}
	}
}

// learn notes the hard constraints of a class. Constraints without a selector count no pod, and are
// left out.
func (s *spreads) learn(class *cluster.PodClass) {
	for i, c := range class.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != v1.DoNotSchedule || i >= len(class.Spec.SpreadSelectors) || class.Spec.SpreadSelectors[i] == nil {
			continue
		}
		selector := class.Spec.SpreadSelectors[i]
		key := fmt.Sprintf("%q %q %q", c.TopologyKey, class.Namespace, selector.String())
		if s.known[key] == nil {
			s.known[key] = &spread{key: c.TopologyKey, namespace: class.Namespace, selector: selector}
		}
	}
}

// of returns what a class has to do with the spreads. It must be asked only when all classes have
// been learnt: the answer is kept.
func (s *spreads) of(class *cluster.PodClass) *spreading {
	if known := s.byClass[class]; known != nil {
		return known
	}
	it := &spreading{}
	s.byClass[class] = it
	for _, k := range s.known {
		if k.namespace == class.Namespace && k.selector.Matches(class.Labels) {
			it.counted = append(it.counted, k)
		}
	}

	for i, c := range class.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != v1.DoNotSchedule || i >= len(class.Spec.SpreadSelectors) || class.Spec.SpreadSelectors[i] == nil {
			continue
		}
		known := s.known[fmt.Sprintf("%q %q %q", c.TopologyKey, class.Namespace, class.Spec.SpreadSelectors[i].String())]
		if known == nil { // of a pod that is placed
			continue
		}
		own := ownSpread{spread: known, skew: int(c.MaxSkew)}
		if own.selector.Matches(class.Labels) {
			own.self = 1
		}
		it.own = append(it.own, own)
	}
	return it
}

// knows reports whether the counts say all of the hard constraints of a class. Which nodes count to
// a constraint with policies, or to a pod that selects nodes, only the engine knows. If not, the
// engine is asked with the constraints in place, and its answer counts.
func (s *spreads) knows(class *cluster.PodClass) bool {
	// Pods without hard constraints are known in any case.
	hard := false
	for i, c := range class.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != v1.DoNotSchedule {
			continue
		}
		hard = true
		if i >= len(class.Spec.SpreadSelectors) || class.Spec.SpreadSelectors[i] == nil || class.Spec.SpreadSelectors[i].Empty() ||
			len(c.MatchLabelKeys) > 0 || c.MinDomains != nil || c.NodeAffinityPolicy != nil || c.NodeTaintsPolicy != nil {
			return false
		}
	}
	return !hard || len(class.Spec.NodeSelector) == 0 && class.Spec.NodeAffinity == nil
}

// add adds the domains of a node. A domain without pods has to be known: it is the one with the
// lowest count.
func (s *spreads) add(labels map[string]string) {
	for _, k := range s.known {
		if domain, has := labels[k.key]; has {
			k.add(domain)
		}
	}
}

// count counts a pod on a node.
func (s *spreads) count(class *cluster.PodClass, labels map[string]string) {
	for _, k := range s.of(class).counted {
		if domain, has := labels[k.key]; has {
			k.count(domain)
		}
	}
}

// allow reports whether a pod of the class may go to a node now. A node without the topology key is
// refused, as by the scheduler's filter.
func (s *spreads) allow(class *cluster.PodClass, labels map[string]string) bool {
	for _, own := range s.of(class).own {
		domain, has := labels[own.key]
		if !has || !own.allows(domain) {
			return false
		}
	}
	return true
}

// apartOf are groups of which a node can always hold one pod: those that a constraint by node
// counts, and those that have it. It is more than the constraints ask, for the few pods that were
// left because numbers did not know them.
func (s *spreads) apartOf(class *cluster.PodClass) (keys []string) {
	it := s.of(class)
	note := func(k *spread) {
		if k.key == v1.LabelHostname {
			keys = append(keys, fmt.Sprintf("spread %q %q", k.namespace, k.selector.String()))
		}
	}
	for _, k := range it.counted {
		note(k)
	}
	for _, own := range it.own {
		note(own.spread)
	}

	slices.Sort(keys)
	return slices.Compact(keys)
}

// allows reports whether the domain may have one more pod. It is the rule of PodTopologySpread:
// with the pod, the domain may exceed the lowest by maxSkew at most.
func (o *ownSpread) allows(domain string) bool { return o.counts[domain]+o.self-o.least() <= o.skew }

// add notes a domain, which may be known already.
func (k *spread) add(domain string) {
	if _, known := k.counts[domain]; !known {
		k.counts[domain] = 0
		k.domains[0]++
	}
}

// count counts a pod in a domain.
func (k *spread) count(domain string) {
	k.add(domain)
	before := k.counts[domain]
	k.counts[domain]++
	if k.domains[before]--; k.domains[before] == 0 {
		delete(k.domains, before)
	}
	k.domains[before+1]++
}

// least is the lowest count of any domain. Domains have few different ones. 0 if there is none.
func (k *spread) least() int {
	// Without a domain at all, the first pod opens one.
	if k.domains[0] > 0 || len(k.domains) == 0 {
		return 0
	}
	least := math.MaxInt
	for count := range k.domains {
		least = min(least, count)
	}
	return least
}

// turnOf is when the pods of a class are tried: those that spread over zones and other large
// domains first, then those that spread over nodes, then those that are only counted. The pods with
// the least choice come first, while all domains are open.
func turnOf(class *cluster.PodClass) int {
	// Pods that are only counted come last: they go anywhere, and fill what is left.
	turn := 2
	for _, s := range class.Spec.TopologySpreadConstraints {
		switch {
		case s.WhenUnsatisfiable != v1.DoNotSchedule:
		case s.TopologyKey == v1.LabelHostname:
			turn = min(turn, 1)
		default:
			turn = 0
		}
	}
	return turn
}
