package hints

import (
	"slices"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
)

// pods is what can help against InterPodAffinity.
func (h *hints) pods() []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Pod, Action: queue.Add | queue.Delete | queue.UpdatePodLabel, Hint: h.podMatters},
		{Resource: queue.Node, Action: queue.Add | queue.Delete | queue.UpdateNodeLabel, Hint: h.domainMatters},
		{Resource: queue.Namespace, Action: queue.All},
	}
}

func (h *hints) affinitiesOf(class *cluster.PodClass) *plugins.Affinities {
	if h.namespaces != h.c.Namespaces.Version || len(h.affinities) > keep {
		h.namespaces = h.c.Namespaces.Version
		clear(h.affinities)
	}
	a, ok := h.affinities[class]
	if !ok {
		a = plugins.NewAffinities(h.c, class)
		h.affinities[class] = a
	}
	return a
}

// podMatters tells whether a pod that came, went, or has other labels now is one that the waiting pod looks for, or one that it,
// or that other pod, wants to be away from.
func (h *hints) podMatters(item *queue.Item, e *queue.Event) bool {
	if !others(e) {
		return own(item, e)
	}
	a := h.affinitiesOf(item.Class)
	switch {
	case e.PodBefore == nil:
		return e.Pod != nil && a.Attracts(e.Pod.Class)
	case e.Pod == nil:
		return leaves(a, e.PodBefore.Class)
	}
	return a.Attracts(e.Pod.Class) && !a.Attracts(e.PodBefore.Class) ||
		leaves(a, e.PodBefore.Class) && !slices.Equal(kept(a, e.Pod.Class), kept(a, e.PodBefore.Class))
}

// leaves tells whether it helps that a pod of the class is gone. One that attracted the waiting pod to a node that cannot take it
// stood in the way of its being the first of its kind.
func leaves(a *plugins.Affinities, class *cluster.PodClass) bool {
	return len(a.Repels(class)) > 0 || len(a.RepelledBy(class)) > 0 || a.AttractsItself() && a.Attracts(class)
}

// kept is by which keys the waiting pod is kept away from pods of the class, or drawn to them.
func kept(a *plugins.Affinities, class *cluster.PodClass) []string {
	keys := append(a.Repels(class), a.RepelledBy(class)...)
	if a.Attracts(class) {
		keys = append(keys, "")
	}
	return keys
}

// domainMatters tells whether a node that came, went, or has other labels now can be a place for the waiting pod, or moves pods that
// matter to it from one domain to another.
func (h *hints) domainMatters(item *queue.Item, e *queue.Event) bool {
	a := h.affinitiesOf(item.Class)
	if e.Node == nil {
		return slices.ContainsFunc(e.NodeBefore.Pods, func(p *cluster.Pod) bool { return leaves(a, p.Class) })
	}
	if e.NodeBefore == nil {
		return len(e.Node.Pods) > 0 || !slices.ContainsFunc(a.Required(), func(key string) bool { return !e.Node.Has(key) })
	}
	changed := func(key string) bool {
		was, had := e.NodeBefore.Lookup(key)
		is, has := e.Node.Lookup(key)
		return was != is || had != has
	}
	for i := range item.Class.RequiredAntiAffinity {
		if changed(item.Class.RequiredAntiAffinity[i].TopologyKey) {
			return true
		}
	}
	return slices.ContainsFunc(a.Required(), changed) || h.repelledBy(a, changed)
}

// repelledBy tells whether some pod keeps the waiting one away by a key for which is says yes.
func (h *hints) repelledBy(a *plugins.Affinities, is func(key string) bool) bool {
	known := map[*cluster.PodClass]bool{}
	for _, n := range h.c.Nodes {
		if n == nil || n.AntiAffine == 0 {
			continue
		}
		for _, p := range n.Pods {
			if len(p.Class.RequiredAntiAffinity) == 0 || known[p.Class] {
				continue
			}
			known[p.Class] = true
			if slices.ContainsFunc(a.RepelledBy(p.Class), is) {
				return true
			}
		}
	}
	return false
}
