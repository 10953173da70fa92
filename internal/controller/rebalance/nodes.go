// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
)

// preferenceOf returns the weight of the pod's preferred node affinity on a node: the sum of the
// weights of the matching terms, counted like the scheduler's plugin NodeAffinity before
// normalization, and including the profile's added terms. It returns nil if the pod has no
// preferences, if no profile serves the pod, or if the profile lacks the plugin.
func (w *world) preferenceOf(p *pod) func(n *cluster.Node) (int64, error) {
	s := w.schedulerOf(p)
	if s == nil || s.affinity == nil {
		return nil
	}
	return s.affinity.Score(w.c, p.Pod, nil).Node
}

// affinityWeight returns the weight of the pod's preferred node affinity on a node, or 0 without
// preferences (see preferenceOf).
func (w *world) affinityWeight(p *pod, n *cluster.Node) int64 {
	prefers := w.preferenceOf(p)
	if prefers == nil {
		return 0
	}
	weight, err := prefers(n)
	if err != nil {
		return 0
	}
	return weight
}

// greatestWeight returns the greatest affinityWeight of the pod on the nodes for which include
// returns true.
func (w *world) greatestWeight(p *pod, include func(n *cluster.Node) bool) (best int64) {
	prefers := w.preferenceOf(p)
	if prefers == nil {
		return 0
	}

	for _, n := range w.c.Nodes {
		if n == nil || !include(n) {
			continue
		}
		if weight, err := prefers(n); err == nil {
			best = max(best, weight)
		}
	}

	return best
}

// nodeObject returns the API object of a node of the cluster.
func (w *world) nodeObject(n *cluster.Node) *v1.Node {
	object, _ := objects.Get[*v1.Node](w.World, "", n.Name)
	return object
}

// suitsPod reports whether affinity, taints and cordon allow the pod on a node. It considers
// neither room nor other pods.
func (w *world) suitsPod(p *pod, n *cluster.Node) bool {
	if k := w.hard.concernOf(p); k.judge != nil && k.judge(n) != nil {
		return false
	}
	// A temporarily closed node still suits the pod.
	return !n.Taints.Unschedulable &&
		!slices.ContainsFunc(plugins.Untolerated(p.Pod, n), func(t *v1.Taint) bool { return t.Key != EmptyingTaint })
}

// countSuitable counts the nodes suiting the pod. It looks at all nodes, so callers cache the
// result.
func (w *world) countSuitable(p *pod) int64 {
	return int64(rules.Count(slices.Values(w.c.Nodes), func(n *cluster.Node) bool { return n != nil && w.suitsPod(p, n) }))
}

// staysOnNode reports whether a pod belongs to its node: if deleted, it is recreated on the same
// node. This applies to static and DaemonSet pods. Owner and annotations of a pod do not change, so
// the result is cached in the pod.
func staysOnNode(p *pod) bool {
	if p.staying == nil {
		p.staying = new(isStatic(p) || rules.ControllerKind(p.object) == rules.DaemonSet)
	}
	return *p.staying
}

// isStatic reports whether a pod belongs to its node rather than to a scheduler: the kubelet runs
// it from a file, and the API object is only its mirror. Evicting the mirror does not end the
// containers.
func isStatic(p *pod) bool {
	return p.object.Annotations[v1.MirrorPodAnnotationKey] != "" || rules.ControllerKind(p.object) == rules.Node
}
