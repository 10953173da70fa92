package hints

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
)

// spread is what a class wants of PodTopologySpread.
type spread struct {
	constraints []plugins.SpreadConstraint
	own         bool // they stand in the pod, and are no defaults
	err         error
}

// spread is what can help against PodTopologySpread: whatever changes a count, or which nodes are counted.
func (h *hints) spread(f *plugins.PodTopologySpread) []queue.Interest {
	of := func(class *cluster.PodClass) *spread {
		if s, ok := h.spreads[class]; ok {
			return s
		}
		s := &spread{own: len(class.Spec.TopologySpreadConstraints) > 0}
		s.constraints, s.err = f.Hard(h.c, &cluster.Pod{Class: class})
		if s.own && len(h.spreads) < keep { // defaults depend on services and owners
			h.spreads[class] = s
		}
		return s
	}
	return []queue.Interest{
		{
			Resource: queue.Pod, Action: queue.Add | queue.Delete | queue.Update,
			Hint: func(item *queue.Item, e *queue.Event) bool { return of(item.Class).podMatters(item, e) },
		},
		{
			Resource: queue.Node, Action: queue.Add | queue.Delete | queue.UpdateNodeLabel | queue.UpdateNodeTaint,
			Hint: func(item *queue.Item, e *queue.Event) bool { return of(item.Class).nodeMatters(item.Class, e) },
		},
		{
			Resource: queue.Owner, Action: queue.All,
			Hint: func(item *queue.Item, _ *queue.Event) bool { s := of(item.Class); return !s.own },
		},
	}
}

func (s *spread) podMatters(item *queue.Item, e *queue.Event) bool {
	if s.err != nil {
		return true
	}
	if !others(e) {
		return own(item, e) && (e.Action&queue.UpdatePodLabel != 0 || e.Action&queue.UpdatePodToleration != 0 && s.honoursTaints())
	}
	for i := range s.constraints {
		if counts(&s.constraints[i], item, e.PodBefore) != counts(&s.constraints[i], item, e.Pod) {
			return true
		}
	}
	return false
}

// counts tells whether a constraint counts the pod, wherever it is.
func counts(c *plugins.SpreadConstraint, item *queue.Item, p *cluster.Pod) bool {
	return p != nil && !p.Terminating && c.Counts(p.Class, item.Class.Namespace)
}

func (s *spread) honoursTaints() bool {
	return slices.ContainsFunc(s.constraints, func(c plugins.SpreadConstraint) bool {
		return c.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor
	})
}

func (s *spread) nodeMatters(class *cluster.PodClass, e *queue.Event) bool {
	if s.err != nil {
		return true
	}
	was, is := s.counted(e.NodeBefore), s.counted(e.Node)
	switch {
	case was != is:
		return true
	case !is:
		return false
	}
	for i := range s.constraints {
		if e.Node.Get(s.constraints[i].TopologyKey) != e.NodeBefore.Get(s.constraints[i].TopologyKey) {
			return true
		}
	}
	if e.Node.Taints != e.NodeBefore.Taints && s.honoursTaints() {
		return true
	}
	selects := len(class.Spec.NodeSelector) > 0 || class.Spec.Affinity != nil && class.Spec.Affinity.NodeAffinity != nil
	relabelled := e.Node.Labels != e.NodeBefore.Labels || e.Node.Hostname != e.NodeBefore.Hostname
	return selects && relabelled // the node may be left out of the counts now, or no longer
}

// counted tells whether a node has all keys, without which it does not count.
func (s *spread) counted(n *cluster.Node) bool {
	return n != nil && !slices.ContainsFunc(s.constraints, func(c plugins.SpreadConstraint) bool { return !n.Has(c.TopologyKey) })
}
