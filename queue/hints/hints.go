package hints

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
)

// For returns what can help pods of the profile.
func For(c *cluster.Cluster, p *plugins.Profile) queue.Interests {
	h := &hints{c: c, profile: p, affinities: map[*cluster.PodClass]*plugins.Affinities{}, spreads: map[*cluster.PodClass]*spread{}}
	all := queue.Interests{}
	for _, gate := range p.Gates {
		if gate.Name() == "SchedulingGates" {
			all[gate.Name()] = []queue.Interest{{Resource: queue.Pod, Action: queue.UpdatePodSchedulingGatesEliminated, Hint: own}}
		}
	}
	for _, f := range p.Filters {
		if interests, known := h.filter(f); known {
			all[f.Name()] = interests
		}
	}
	if p.Has(plugins.PreEnqueue, "DynamicResources") {
		all["DynamicResources"] = h.devices()
	}
	all["DefaultPreemption"] = []queue.Interest{} // keeps a pod out until its victims were told; see the shell
	return all
}

type hints struct {
	c       *cluster.Cluster
	profile *plugins.Profile

	// What is made once for a class.
	affinities map[*cluster.PodClass]*plugins.Affinities
	namespaces uint64 // version that they hold for
	spreads    map[*cluster.PodClass]*spread
}

// keep is how many classes something is kept for.
const keep = 512

// filter returns what can help against a filter; unknown ones, and those cut down to one extension point, are left out.
func (h *hints) filter(f plugins.Filter) (interests []queue.Interest, known bool) {
	added := queue.Interest{Resource: queue.Node, Action: queue.Add, Hint: h.nodeNowPasses(f)}
	switch f.Name() {
	case "NodeName":
		return []queue.Interest{added}, true
	case "NodeUnschedulable", "TaintToleration":
		return []queue.Interest{
			{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeTaint, Hint: h.nodeNowPasses(f)},
			{Resource: queue.Pod, Action: queue.UpdatePodToleration, Hint: own},
		}, true
	case "NodeAffinity":
		return []queue.Interest{{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel, Hint: h.nodeNowPasses(f)}}, true
	case "NodeDeclaredFeatures":
		return []queue.Interest{
			{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeDeclaredFeature, Hint: h.nodeNowPasses(f)},
			{Resource: queue.Pod, Action: queue.Update, Hint: ownSpec},
		}, true
	case "NodePorts":
		return []queue.Interest{
			{Resource: queue.Node, Action: queue.Add},
			{Resource: queue.Pod, Action: queue.Delete, Hint: freesPort},
		}, true
	case "NodeResourcesFit":
		return h.room(f), true
	case "PodTopologySpread":
		f, whole := f.(*plugins.PodTopologySpread)
		if !whole {
			return nil, false
		}
		return h.spread(f), true
	case "InterPodAffinity":
		return h.pods(), true
	case "VolumeRestrictions":
		return h.volumeRestrictions(), true
	case "NodeVolumeLimits":
		return h.volumeLimits(), true
	case "VolumeBinding":
		return h.volumeBinding(), true
	case "VolumeZone":
		return h.volumeZone(), true
	case "DynamicResources":
		return h.devices(), true
	}
	return nil, false
}

// own is for events of the waiting pod itself.
func own(item *queue.Item, e *queue.Event) bool { return e.Own == item }

// ownSpec is for changes of the waiting pod's spec.
func ownSpec(item *queue.Item, e *queue.Event) bool {
	old, known := e.Old.(*v1.Pod)
	return own(item, e) && !(known && old.Generation == item.Pod.Generation && old.Generation > 0)
}

// others is for events of pods that have their place.
func others(e *queue.Event) bool { return e.Own == nil }

// pod is what a filter is asked about for an item.
func pod(item *queue.Item) *cluster.Pod {
	return &cluster.Pod{Class: item.Class, Name: item.Pod.Name, UID: item.Pod.UID}
}

// nodeNowPasses tells whether a filter that looks at the node alone lets the pod pass now and did not before.
func (h *hints) nodeNowPasses(f plugins.Filter) func(*queue.Item, *queue.Event) bool {
	return func(item *queue.Item, e *queue.Event) bool {
		if e.Node == nil {
			return false
		}
		judge := f.Filter(h.c, pod(item))
		if judge.Err != nil || judge.All != nil {
			return true // whatever it is, let it be said anew
		}
		passes := func(n *cluster.Node) bool {
			return (judge.Only == nil || judge.Only[n.Name]) && (judge.Node == nil || judge.Node(n) == nil)
		}
		return passes(e.Node) && (e.NodeBefore == nil || !passes(e.NodeBefore))
	}
}

func freesPort(item *queue.Item, e *queue.Event) bool {
	if e.PodBefore == nil {
		return false
	}
	for _, wanted := range item.Class.Ports {
		for _, taken := range e.PodBefore.Class.Ports {
			if wanted.Conflicts(taken) {
				return true
			}
		}
	}
	return false
}
