package soak

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// demand is what a pod takes of a node, overhead included: CPU in thousandths, all else in ones.
type demand map[v1.ResourceName]int64

func demandOf(pod *v1.Pod) demand {
	d := toDemand(resource.PodRequests(pod, resource.PodResourcesOptions{}))
	d[v1.ResourcePods] = 1
	return d
}

func toDemand(list v1.ResourceList) demand {
	d := demand{}
	for name, quantity := range list {
		if name == v1.ResourceCPU {
			d[name] = quantity.MilliValue()
			continue
		}
		d[name] = quantity.Value()
	}
	return d
}

// takesRoom: a pod counts on its node until it has ended or is gone, also while it leaves.
func takesRoom(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

// checkRoom: all pods of a node together ask for no more than it has. The watch of pods shows them
// in the order in which they were written, so what is added up here was so.
func (w *witness) checkRoom(node string, came *podSeen) {
	n := w.nodes[node]
	if n == nil || !takesRoom(came.pod) {
		return
	}

	w.checks.addOne(roomKept)
	taken := demand{}
	for _, p := range w.pods {
		if p.pod.Spec.NodeName == node && takesRoom(p.pod) {
			for name, amount := range p.demand {
				taken[name] += amount
			}
		}
	}

	size := toDemand(n.node.Status.Allocatable)
	for name, amount := range came.demand {
		if amount > 0 && taken[name] > size[name] {
			w.reportOnce(roomKept, podKey(came.pod), "node %s has %d of %s, and its pods ask for %d since %s came", node,
				size[name], name, taken[name], podKey(came.pod))
		}
	}
}
