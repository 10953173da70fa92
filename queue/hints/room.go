package hints

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
)

// room is what can help against NodeResourcesFit: room on the node that the event is of, enough for the pod. A pod that may preempt
// others is also helped by room that is enough once those have left, unless it could have had them leave before, too.
func (h *hints) room(f plugins.Filter) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeAllocatable, Hint: func(item *queue.Item, e *queue.Event) bool {
			return e.Node != nil && (e.NodeBefore == nil || grew(&item.Class.Requests, e)) && (h.fits(f, item, e.Node) || h.fitsWithoutLower(f, item, e.Node))
		}},
		{Resource: queue.Pod, Action: queue.Delete | queue.UpdatePodScaleDown, Hint: func(item *queue.Item, e *queue.Event) bool {
			switch {
			case !others(e):
				return own(item, e)
			case e.Node == nil || e.PodBefore == nil || !frees(&item.Class.Requests, e):
				return false
			case h.fits(f, item, e.Node):
				return true
			}
			return e.PodBefore.Class.Priority >= item.Class.Priority && h.fitsWithoutLower(f, item, e.Node)
		}},
		{Resource: queue.DeviceClass, Action: queue.Add | queue.Update, Hint: func(item *queue.Item, _ *queue.Event) bool {
			return len(item.Class.Requests.Scalars) > 0
		}},
	}
}

func (h *hints) fits(f plugins.Filter, item *queue.Item, n *cluster.Node) bool {
	judge := f.Filter(h.c, pod(item))
	return judge.Node == nil || judge.Node(n) == nil
}

// fitsWithoutLower tells whether the pod could go to the node if all pods of lower priority left it.
func (h *hints) fitsWithoutLower(f plugins.Filter, item *queue.Item, n *cluster.Node) bool {
	if !h.mayPreempt(item) {
		return false
	}
	var without *cluster.Node
	for _, p := range n.Pods {
		if p.Class.Priority < item.Class.Priority {
			if without == nil {
				without = n.Copy(nil)
			}
			without.Take(p)
		}
	}
	return without != nil && h.fits(f, item, without)
}

func (h *hints) mayPreempt(item *queue.Item) bool {
	policy := item.Class.Spec.PreemptionPolicy
	return h.profile.Preemption && (policy == nil || *policy != v1.PreemptNever)
}

// grew tells whether the node has more of something that is wanted than it had.
func grew(wanted *cluster.Resources, e *queue.Event) bool {
	was, is := e.NodeBefore.Size, e.Node.Size
	return is.Pods > was.Pods || more(wanted, &was.Resources, &is.Resources)
}

// frees tells whether the pod takes less of something that is wanted than it did.
func frees(wanted *cluster.Resources, e *queue.Event) bool {
	if e.Pod == nil {
		return true // its place among the pods at least
	}
	return more(wanted, &e.Pod.Class.Requests, &e.PodBefore.Class.Requests)
}

// more tells whether b has more than a of something that is wanted.
func more(wanted, a, b *cluster.Resources) bool {
	if wanted.MilliCPU > 0 && b.MilliCPU > a.MilliCPU || wanted.Memory > 0 && b.Memory > a.Memory ||
		wanted.EphemeralStorage > 0 && b.EphemeralStorage > a.EphemeralStorage {
		return true
	}
	for name, amount := range wanted.Scalars {
		// A resource that the node no longer has may be left to devices.
		if amount > 0 && (b.Scalars[name] > a.Scalars[name] || b.Scalars[name] == 0 && a.Scalars[name] > 0) {
			return true
		}
	}
	return false
}
