// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// facts holds measures of the quality of the pods' placement, computed independently of the
// planner.
type facts struct {
	// violated counts violations of required constraints: pods on nodes that they do not select or
	// tolerate, pods in a zone beyond the maxSkew of their topology spread, and pods on the same
	// node as a pod that they repel.
	violated int
	inUse    int // nodes with pods
	// room is the number of big pods that would fit. fragmented is the share of the free CPU that
	// big pods cannot use.
	room       int
	fragmented float64
	pending    int
}

// These are the requests of a big pod. They are half of the most common kind of node.
const (
	bigCPU    = 8000
	bigMemory = 32 << 30
)

// crowdOf identifies the pods of one app in one domain, a zone or a node.
type crowdOf struct{ namespace, app, domain string }

func factsOf(nodes []v1.Node, pods []v1.Pod) (f facts) {
	byName, on, zones := map[string]*v1.Node{}, map[string][]*v1.Pod{}, map[string]bool{}
	for i := range nodes {
		byName[nodes[i].Name] = &nodes[i]
		zones[nodes[i].Labels[v1.LabelTopologyZone]] = true
	}
	spreads, hosts := map[types.NamespacedName]*v1.TopologySpreadConstraint{}, map[crowdOf]int{}
	inZone := map[crowdOf]int{}
	for i := range pods {
		pod := &pods[i]
		node := byName[pod.Spec.NodeName]
		if node == nil {
			f.pending++
			continue
		}
		on[node.Name] = append(on[node.Name], pod)
		if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
			f.violated++
		}
		if _, repelled := corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints,
			pod.Spec.Tolerations, func(t *v1.Taint) bool {
				return t.Effect == v1.TaintEffectNoSchedule && t.Key != rebalance.EmptyingTaint
			}, false); repelled {
			f.violated++
		}
		app := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels["app"]}
		for k := range pod.Spec.TopologySpreadConstraints {
			if c := &pod.Spec.TopologySpreadConstraints[k]; c.WhenUnsatisfiable == v1.DoNotSchedule {
				spreads[app] = c
			}
		}
		inZone[crowdOf{app.Namespace, app.Name, node.Labels[v1.LabelTopologyZone]}]++
		if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil &&
			len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			hosts[crowdOf{app.Namespace, app.Name, node.Name}]++
		}
	}
	for _, together := range hosts { // of n pods that repel each other on a node, n-1 are misplaced
		f.violated += together - 1
	}
	for app, c := range spreads {
		var counts []int
		for zone := range zones {
			counts = append(counts, inZone[crowdOf{app.Namespace, app.Name, zone}])
		}
		for _, n := range counts {
			f.violated += max(0, n-slices.Min(counts)-int(c.MaxSkew))
		}
	}
	f.countNodes(nodes, on)
	return f
}

// countNodes computes the facts about nodes. It excludes tainted nodes, such as nodes with devices,
// from the free capacity, unless the taint is Berth's own.
func (f *facts) countNodes(nodes []v1.Node, on map[string][]*v1.Pod) {
	var free, used int64
	for i := range nodes {
		node := &nodes[i]
		if len(on[node.Name]) > 0 {
			f.inUse++
		}
		if len(node.Spec.Taints) > 0 && node.Spec.Taints[0].Key != rebalance.EmptyingTaint {
			continue
		}
		cpu, memory := node.Status.Allocatable.Cpu().MilliValue(), node.Status.Allocatable.Memory().Value()
		for _, pod := range on[node.Name] {
			for k := range pod.Spec.Containers {
				r := pod.Spec.Containers[k].Resources.Requests
				cpu, memory = cpu-r.Cpu().MilliValue(), memory-r.Memory().Value()
			}
		}
		n := max(0, min(cpu/bigCPU, memory/bigMemory))
		f.room += int(n)
		free, used = free+max(0, cpu), used+n*bigCPU
	}

	f.fragmented = 1 - float64(used)/float64(max(1, free))
}

// carryOut sets the pods' nodes to the planned nodes, and taints the nodes that the plan empties.
func carryOut(plan *rebalance.Plan, nodes []v1.Node, pods []v1.Pod) {
	to := map[types.UID]string{}
	for i := range plan.Moves {
		to[plan.Moves[i].UID] = plan.Moves[i].To
	}

	for _, a := range plan.Arrivals {
		to[a.UID] = a.Node
	}
	for i := range pods {
		if node := to[pods[i].UID]; node != "" {
			pods[i].Spec.NodeName = node
		}
	}

	for i := range nodes {
		if slices.Contains(plan.Empties, nodes[i].Name) {
			nodes[i].Spec.Taints = append(nodes[i].Spec.Taints, v1.Taint{Key: rebalance.EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
		}
	}
}
