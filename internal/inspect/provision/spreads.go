// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// spreads counts, by domain, the pods that the hard spread constraints of pending pods select. With
// these counts, the engine rarely rejects a planned node. The engine's decision is final; it also
// handles node inclusion policies of constraints, which are ignored here.
//
//	zone a has 3 web pods, b has 2, c has 2; maxSkew 1
//	a may have one more if 3 + 1 - 2 <= 1: no. b may: 2 + 1 - 2 <= 1.
//
// It is used twice: to choose zones before the packing (type zones), and to choose nodes after it
// (assign.go). In between, countAnew resets the counts, because the choice of zones is only
// tentative.
type spreads struct {
	// known is keyed by topology key, namespace and selector, so constraints of several classes may
	// share a count. byClass is filled on demand.
	known   map[string]*spread
	byClass map[*cluster.PodClass]*spreading
}

// spread is a selector with a topology key.
type spread struct {
	key, namespace string
	selector       *rules.Selector
	counts         map[string]int // by domain
	// domains makes it unnecessary to scan all domains for the lowest count: a spread over hosts
	// has one domain per node.
	domains map[int]int // number of domains by count
}

// spreading relates a class to spreads.
type spreading struct {
	own     []ownSpread
	counted []*spread // spreads that count its pods
}

// ownSpread is a hard constraint of a class. self is 1 if the constraint's selector matches the
// class's own pods, and 0 otherwise; skew is maxSkew.
type ownSpread struct {
	*spread
	self, skew int
}

// newSpreads counts placed pods, except on trial nodes, for the constraints of the given pending
// pods. Constraints of placed pods no longer matter.
func newSpreads(w *simulate.World, pods []*cluster.Pod, trial func(node string) bool) *spreads {
	s := &spreads{known: map[string]*spread{}, byClass: map[*cluster.PodClass]*spreading{}}
	for _, p := range pods {
		s.learn(p.Class)
	}
	s.countAnew(w, trial)
	return s
}

// countAnew resets the counts and counts the placed pods.
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

// learn records the hard constraints of a class. It skips constraints without a selector, because
// they count no pods.
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

// spreadingOf returns the relation of a class to the spreads. It must not be called before all
// classes have been learnt, because it caches the result.
func (s *spreads) spreadingOf(class *cluster.PodClass) *spreading {
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
		if known == nil { // a constraint of a placed pod only
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

// knows reports whether the counts cover all hard constraints of a class. For a constraint with
// policies, or a pod that selects nodes, only the engine can determine the nodes that count, so the
// engine evaluates these constraints.
func (s *spreads) knows(class *cluster.PodClass) bool {
	// Pods without hard constraints are always covered.
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

// add adds the domains of a node. Domains without pods must be included, because they have the
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
	for _, k := range s.spreadingOf(class).counted {
		if domain, has := labels[k.key]; has {
			k.count(domain)
		}
	}
}

// allow reports whether a pod of the class may currently go to a node. Like the scheduler's filter,
// it refuses a node without the topology key.
func (s *spreads) allow(class *cluster.PodClass, labels map[string]string) bool {
	for _, own := range s.spreadingOf(class).own {
		domain, has := labels[own.key]
		if !has || !own.allows(domain) {
			return false
		}
	}
	return true
}

// apartOf returns keys of groups limited to one pod per node, for pods that have a constraint by
// node or are counted by one. The groups are stricter than the constraints, which is always
// permissible. They are used only for the few pods that remained because the packing ignored their
// constraints.
func (s *spreads) apartOf(class *cluster.PodClass) (keys []string) {
	it := s.spreadingOf(class)
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
// including the pod, the domain may exceed the lowest count by at most maxSkew.
func (o *ownSpread) allows(domain string) bool { return o.counts[domain]+o.self-o.least() <= o.skew }

// add records a domain, possibly a known one.
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

// least returns the lowest count of any domain, or 0 without domains. It scans the distinct counts,
// of which there are few.
func (k *spread) least() int {
	// If no domain exists, the first pod creates one.
	if k.domains[0] > 0 || len(k.domains) == 0 {
		return 0
	}
	least := math.MaxInt
	for count := range k.domains {
		least = min(least, count)
	}
	return least
}

// turnOf returns the position of a class in the order of attempts: first pods spread over zones and
// other large domains, then pods spread over nodes, then all other pods. The pods with the least
// choice go first, while all domains are open.
func turnOf(class *cluster.PodClass) int {
	// Pods without a hard spread constraint go last, because they fill the remaining room.
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

// zones chooses zones in advance for pods with constraints by zone. Spreading pods go to the zone
// with the fewest similar pods, and pods with affinity to each other follow the first of them.
//
// The packing counts nothing across bins, so it cannot keep zones even; the zones are therefore
// chosen before the packing.
type zones struct {
	d     *demand
	alike map[likeness]int  // number of pods by look and domain
	given map[string]string // chosen zone by affinity term
}

// likeness identifies similar pods in a domain. look is the Look of the pods' class: pods with the
// same look are equivalent for the constraints of other pods.
type likeness struct {
	look        [2]uint64
	key, domain string
}

// choose narrows the kinds of a pod to one zone if it has constraints by zone, and otherwise
// returns all kinds. A choice counts for later pods, so callers must pass pods in the order of
// attempts.
func (z *zones) choose(p *cluster.Pod, kinds []int) []int {
	class := p.Class
	for _, own := range z.d.spreads.spreadingOf(class).own {
		if own.key != v1.LabelHostname {
			kinds = z.spread(class, &own, kinds)
		}
	}

	for _, term := range class.RequiredAffinity {
		if term.TopologyKey == v1.LabelTopologyZone && term.Matches(class, nil) {
			key := fmt.Sprint(term.Namespaces, term.Selector.String())
			zone, known := z.given[key]
			// The first pod with this term takes its first possible zone; the pods after it follow
			// if they can.
			if !known || len(z.kindsIn(kinds, v1.LabelTopologyZone, zone)) == 0 {
				zone = z.zonesOf(kinds, v1.LabelTopologyZone)[0]
				z.given[key] = zone
			}
			return z.kindsIn(kinds, v1.LabelTopologyZone, zone)
		}
	}

	return kinds
}

// spread narrows the kinds to one domain for a pod of the class. Among the domains allowed by the
// constraint, it chooses the domain with the fewest similar pods, which also keeps the counts of
// other constraints even.
func (z *zones) spread(class *cluster.PodClass, own *ownSpread, kinds []int) []int {
	best, fewest := "", math.MaxInt
	// Add all available domains before computing the lowest count.
	for _, domain := range z.zonesOf(kinds, own.key) {
		own.add(domain)
	}
	for _, domain := range z.zonesOf(kinds, own.key) {
		like := z.alike[likeness{class.Look, own.key, domain}]
		if !own.allows(domain) {
			// A disallowed domain is the last choice, but a possible one, because some domain must
			// be chosen.
			like += math.MaxInt32 + own.counts[domain]
		}
		if like < fewest {
			best, fewest = domain, like
		}
	}

	// From here on this pod counts as placed there, until assign resets the counts.
	z.alike[likeness{class.Look, own.key, best}]++
	for _, k := range z.d.spreads.spreadingOf(class).counted {
		if k.key == own.key {
			k.count(best)
		}
	}
	return z.kindsIn(kinds, own.key, best)
}

// zonesOf returns the values of the kinds for a label, sorted.
func (z *zones) zonesOf(kinds []int, key string) (list []string) {
	for _, k := range kinds {
		if value := z.d.kinds[k].labels[key]; !slices.Contains(list, value) {
			list = append(list, value)
		}
	}
	slices.Sort(list)
	return list
}

// kindsIn returns the kinds with a value for a label, in the same order. A label missing from a
// kind has the value "".
func (z *zones) kindsIn(kinds []int, key, value string) []int {
	return slices.DeleteFunc(slices.Clone(kinds), func(k int) bool { return z.d.kinds[k].labels[key] != value })
}
