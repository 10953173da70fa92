// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Detail implements Detailer. It names the constraint and the counts compared. It returns nil if
// the pod lacks a readable hard constraint: this plugin then rejects no nodes.
func (s *PodTopologySpread) Detail(c *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	constraints, err := s.Hard(c, p)
	if err != nil || len(constraints) == 0 {
		return nil
	}

	domains := countHard(c, p, constraints)
	return func(n *cluster.Node) string {
		for i := range constraints {
			constraint := &constraints[i]
			value, ok := n.Lookup(constraint.TopologyKey)
			if !ok {
				return "lacks the label " + constraint.TopologyKey
			}
			// Computed for each node, because details are shown only for a few nodes.
			fewest, lowest := lowestDomain(domains[i])
			least := constraint.Least(lowest, len(domains[i]))
			if count := domains[i][value]; !constraint.Allows(count, constraint.Self(p.Class), least) {
				return spreadDetail(constraint, value, count, fewest, lowest, least)
			}
		}
		return ""
	}
}

// spreadDetail describes one violated constraint, for example: zone=a has 3 of the pods that match
// app=web, zone b has the fewest, 1, maxSkew 1. With fewer domains than minDomains the count is
// compared with 0, which is no domain's count, so the text explains minDomains instead.
func spreadDetail(c *SpreadConstraint, value string, count int64, fewest string, lowest, least int64) string {
	text := fmt.Sprintf("%s=%s has %d of the pods that match %s", c.TopologyKey, value, count, c.Selector)
	if least < lowest || lowest == NoDomain {
		return fmt.Sprintf("%s, with fewer domains than minDomains %d the least is 0, maxSkew %d", text, c.MinDomains, c.MaxSkew)
	}
	return fmt.Sprintf("%s, %s has the fewest, %d, maxSkew %d", text, fewest, lowest, c.MaxSkew)
}

// lowestDomain returns the domain with the fewest pods. It returns the first by name of several
// such domains, to keep the text stable. Without any domain it returns "" and NoDomain.
func lowestDomain(counts map[string]int64) (value string, lowest int64) {
	lowest = NoDomain
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] < lowest {
			value, lowest = name, counts[name]
		}
	}
	return value, lowest
}

// wantedSpread holds the hard constraints of a class, read once for many events. Soft constraints
// reject no nodes, so events do not matter to them.
type wantedSpread struct {
	constraints []SpreadConstraint
	own         bool // whether these are the pod's constraints rather than defaults
	// err is the reason the constraints cannot be read. Every event wakes such a pod, which then
	// reports the error again.
	err error
}

// keep limits the number of classes cached by the hints of a plugin. cluster.MostBulk limits their
// total size as well, because the cache keeps a class alive after its pods were deleted.
const keep = 512

// recentValues caches a value for each recently used class. A full cache drops all values, and
// values still in use are read again. It is not safe for concurrent use.
type recentValues[T any] struct {
	known map[*cluster.PodClass]T
	bulk  int // total bulk of these classes
}

// addValue caches the value of a new class. For a zero value, it first allocates the map.
func (l *recentValues[T]) addValue(class *cluster.PodClass, value T) {
	if len(l.known) >= keep || l.bulk > cluster.MostBulk || l.known == nil {
		l.forgetAll()
	}
	l.known[class] = value
	l.bulk += class.Bulk
}

// forgetAll drops the values after a change of their inputs.
func (l *recentValues[T]) forgetAll() { l.known, l.bulk = map[*cluster.PodClass]T{}, 0 }

// Interests implements Requeuer. Any change of a count, or of the counted nodes, helps. Even a
// higher count can help: it may raise the minimum over all domains.
func (s *PodTopologySpread) Interests(setting Setting) []queue.Interest {
	var latest recentValues[*wantedSpread]
	of := func(class *cluster.PodClass) *wantedSpread {
		if w, ok := latest.known[class]; ok {
			return w
		}
		w := &wantedSpread{own: len(class.Spec.TopologySpreadConstraints) > 0}
		w.constraints, w.err = s.Hard(setting.Cluster, cluster.NewPod(class, "", ""))
		if w.own { // defaults depend on services and owners
			latest.addValue(class, w)
		}
		return w
	}

	return []queue.Interest{
		{
			Resource: queue.Pod, Action: queue.Add | queue.Delete | queue.Update,
			Narrowing: byLabels(func(class *cluster.PodClass) ([]*rules.Selector, bool) { return of(class).listSelectors() }),
			Hint:      func(item *queue.Item, e *queue.Event) bool { return of(item.Class).podMatters(item, e) },
		},
		{
			Resource: queue.Node, Action: queue.Add | queue.Delete | queue.UpdateNodeLabel | queue.UpdateNodeTaint,
			Hint:      func(item *queue.Item, e *queue.Event) bool { return of(item.Class).nodeMatters(item.Class, e) },
			Narrowing: byCountedNodes(of),
		},
		{
			Resource: queue.Owner, Action: queue.All,
			Hint: func(item *queue.Item, _ *queue.Event) bool { return !of(item.Class).own },
			Narrowing: &queue.Narrowing{
				Topics:      func(item *queue.Item) (topics []queue.Topic, all bool) { return nil, !of(item.Class).own },
				EventTopics: func(*queue.Event) (topics []queue.Topic, all bool) { return nil, false },
			},
		},
	}
}

// listSelectors returns the selectors of the constraints, for a narrowing by labels. all is set if
// the constraints cannot be read, or if they are defaults, whose selectors change with Services and
// controllers.
func (s *wantedSpread) listSelectors() (list []*rules.Selector, all bool) {
	list = rules.Mapped(s.constraints, func(c SpreadConstraint) *rules.Selector { return c.Selector })
	return list, s.err != nil || !s.own
}

// podMatters is the hint for events of pods. Changed labels of the pending pod itself matter,
// because of matchLabelKeys and because a constraint may select the pod; its changed tolerations
// matter if a constraint honours taints. An event of another pod matters if one of the constraints
// begins or ceases to count that pod.
func (s *wantedSpread) podMatters(item *queue.Item, e *queue.Event) bool {
	if s.err != nil {
		return true
	}
	if !isOthers(e) {
		return Own(item, e) && (e.Action&queue.UpdatePodLabel != 0 || e.Action&queue.UpdatePodToleration != 0 && s.honoursTaints())
	}
	return slices.ContainsFunc(s.constraints, func(c SpreadConstraint) bool {
		return countsPod(&c, item, e.PodBefore) != countsPod(&c, item, e.Pod)
	})
}

// countsPod reports whether a constraint counts the pod, regardless of its node.
func countsPod(c *SpreadConstraint, item *queue.Item, p *cluster.Pod) bool {
	return p != nil && !p.Terminating && c.Counts(p.Class, item.Class.Namespace)
}

// honoursTaints reports whether one of the constraints excludes nodes with untolerated taints.
func (s *wantedSpread) honoursTaints() bool {
	return slices.ContainsFunc(s.constraints, func(c SpreadConstraint) bool {
		return c.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor
	})
}

// nodeMatters is the hint for events of nodes: the node enters or leaves the counts, or moves to
// another domain. The contents of the node do not matter here; its pods have separate events.
func (s *wantedSpread) nodeMatters(class *cluster.PodClass, e *queue.Event) bool {
	if s.err != nil {
		return true
	}
	was, is := s.isCounted(e.NodeBefore), s.isCounted(e.Node)
	switch {
	case was != is:
		return true
	case !is:
		return false
	}
	// The node may be in another domain, or be newly excluded from the counts or included in them.
	return slices.ContainsFunc(s.constraints, func(c SpreadConstraint) bool { return relabels(e, c.TopologyKey) }) ||
		e.Node.Taints != e.NodeBefore.Taints && s.honoursTaints() ||
		slices.ContainsFunc(nodeRequirements(class.Spec), func(w wanted) bool { return relabels(e, w.key) })
}

// byCountedNodes selects the classes with counts that may depend on the event's node. An added or
// removed node matters to the classes whose topology keys include one of the node's labels. A
// changed node matters to the classes whose topology keys or node requirements name a changed label
// and, if its taints have changed, to the classes that honour taints.
func byCountedNodes(of func(*cluster.PodClass) *wantedSpread) *queue.Narrowing {
	return &queue.Narrowing{
		Topics: func(item *queue.Item) (topics []queue.Topic, all bool) {
			s := of(item.Class)
			for i := range s.constraints {
				key := s.constraints[i].TopologyKey
				topics = append(topics, queue.Topic{Kind: queue.KeyChange, Key: key}, queue.Topic{Kind: queue.NodeKey, Key: key})
			}

			for _, w := range nodeRequirements(item.Class.Spec) {
				topics = append(topics, queue.Topic{Kind: queue.KeyChange, Key: w.key})
			}
			if s.honoursTaints() {
				topics = append(topics, queue.Topic{Kind: queue.TaintChange})
			}
			// Defaults are not cached, so the hint runs for their classes at every event.
			return topics, s.err != nil || !s.own
		},
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			// All labels of an added or removed node count, because each may be a topology key, of
			// which the node is in a domain.
			if e.Node == nil || e.NodeBefore == nil {
				for key := range cmp.Or(e.Node, e.NodeBefore).AllLabels() {
					topics = append(topics, queue.Topic{Kind: queue.NodeKey, Key: key})
				}
				return topics, false
			}

			topics = rules.Mapped(changedKeys(e), func(key string) queue.Topic { return queue.Topic{Kind: queue.KeyChange, Key: key} })
			if e.Node.Taints != e.NodeBefore.Taints {
				topics = append(topics, queue.Topic{Kind: queue.TaintChange})
			}
			return topics, false
		},
	}
}

// isCounted reports whether a node has all keys and therefore counts. It returns false for nil, a
// missing node.
func (s *wantedSpread) isCounted(n *cluster.Node) bool {
	return n != nil && !slices.ContainsFunc(s.constraints, func(c SpreadConstraint) bool { return !n.Has(c.TopologyKey) })
}

// Wakes implements Waker.
func (*PodTopologySpread) Wakes() []string {
	return []string{"a node is added or changes its labels or taints", "a pod that counts is placed, leaves or changes its labels"}
}
