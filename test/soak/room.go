// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// demand holds a pod's requests, including overhead: CPU in millicores, and other resources in
// whole units.
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

// takesRoom reports whether a pod occupies resources of its node. A terminating pod does so until
// it succeeds, fails or disappears.
func takesRoom(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

// checkRoom verifies that the total requests of a node's pods fit on it. The watch shows pods in
// write order, so each computed total actually occurred.
func (w *observer) checkRoom(node string, came *podSeen) {
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
