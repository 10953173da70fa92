// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Capacity reports the pods that still fit, and where.
//
// Sums are misleading: 100 free CPUs on 100 nodes cannot run a pod that requests 2 CPUs. Each group
// therefore reports the largest free room of a node, and its stranded room, which is free but
// useless to a typical pod.
type Capacity struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	// By is node, zone or shape.
	By     string  `json:"by"`
	Groups []Group `json:"groups"`
	Total  Group   `json:"total"`
	// Typical is the median request of the pods with requests. Stranded room is relative to it.
	Typical Room `json:"typical"`
	// Fill is the number of further pods that fit, if requested.
	Fill *simulate.Fill `json:"fill,omitempty"`
}

// Room is CPU in millicores, memory in bytes, and pods. Pods is 0 if pod slots do not matter.
type Room struct {
	CPU    int64 `json:"cpu"`
	Memory int64 `json:"memory"`
	Pods   int64 `json:"pods,omitempty"`
}

// Group is the sum of a set of nodes. As for the scheduler, terminating pods still occupy their
// room. With typical pods of 500m and 2 GiB, a node with 4 CPU and 1 GiB free strands 4 CPU and no
// memory.
type Group struct {
	Name  string `json:"name"`
	Nodes int    `json:"nodes"`
	// Closed counts nodes that take no new pods: cordoned ones, and nodes with a taint not
	// tolerated by a plain pod.
	Closed      int  `json:"closed,omitempty"`
	Allocatable Room `json:"allocatable"`
	// Requested may exceed Allocatable if a node's allocatable resources have shrunk.
	Requested Room `json:"requested"`
	// Largest is the free room of the open node with the most free CPU: no pod with a larger CPU
	// request fits.
	Largest Room `json:"largest"`
	// LargestNode is "" if no open node has a pod slot left.
	LargestNode string `json:"largestNode,omitempty"`
	// Stranded is free room that no typical pod can use: the node is closed, is out of pod slots,
	// or lacks the other resource.
	Stranded Room `json:"stranded"`
}

// Ways are the ways to group nodes.
var Ways = []string{"node", "zone", "shape"}

// CapacityOf sums the nodes, grouped by one of Ways. Like the scheduler, it counts requests, not
// usage. It does not set Fill.
func CapacityOf(w *simulate.World, by string, source simulate.Source) *Capacity {
	c := &Capacity{APIVersion: simulate.APIVersion, Kind: KindCapacity, Source: source, By: by, Groups: []Group{},
		Total: Group{Name: "total"}}
	nodes := w.Cluster().SortedNodes()
	c.Typical = typicalRequest(nodes)
	for _, n := range nodes {
		c.Total.addNode(n, c.Typical)
	}
	for _, same := range answer.Grouped(nodes, func(n *cluster.Node) string { return groupOf(n, by) }) {
		g := Group{Name: groupOf(same[0], by)}
		for _, n := range same {
			g.addNode(n, c.Typical)
		}
		c.Groups = append(c.Groups, g)
	}

	slices.SortStableFunc(c.Groups, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	return c
}

// groupOf returns the group of a node: its pool, its zone, its shape, or its name. The shape is the
// instance type or, without that label, the capacity.
func groupOf(n *cluster.Node, by string) string {
	switch by {
	case "pool":
		return cmp.Or(plugins.PoolOf(n), groupOf(n, "shape"))
	case "zone":
		zone, _ := n.Lookup(v1.LabelTopologyZone)
		return cmp.Or(zone, "no zone")
	case "shape":
		if kind, ok := n.Lookup(v1.LabelInstanceTypeStable); ok && kind != "" {
			return kind
		}
		return fmt.Sprintf("%s CPU, %s", showCPU(n.Size.MilliCPU), showMemory(n.Size.Memory))
	}
	return n.Name
}

// typicalRequest returns the median request of CPU and of memory, among the pods that request any.
// The median is robust against single large pods. The two medians may belong to different pods.
func typicalRequest(nodes []*cluster.Node) Room {
	var cpus, memories []int64
	for _, n := range nodes {
		for _, p := range n.Pods {
			if r := p.Class.Requests; r.MilliCPU > 0 {
				cpus = append(cpus, r.MilliCPU)
			}
			if r := p.Class.Requests; r.Memory > 0 {
				memories = append(memories, r.Memory)
			}
		}
	}
	return Room{CPU: medianOf(cpus), Memory: medianOf(memories)}
}

// medianOf returns the median: for an even number of values, the lower of the two middle values;
// for an empty list, 0. It sorts the list.
func medianOf(list []int64) int64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[(len(list)-1)/2]
}

// addNode adds a node to the group. A node without room for a typical pod's memory strands its CPU,
// and vice versa.
func (g *Group) addNode(n *cluster.Node, typical Room) {
	// A node with a taint tolerated only by some pods is closed to a plain pod.
	closed := n.Taints.Unschedulable || rules.Untolerated(n.Taints.Taints, nil, rules.KeepsOff) != nil
	size := Room{n.Size.MilliCPU, n.Size.Memory, n.Size.Pods}
	used := Room{n.Requested.MilliCPU, n.Requested.Memory, int64(len(n.Pods))}
	free := Room{max(size.CPU-used.CPU, 0), max(size.Memory-used.Memory, 0), max(size.Pods-used.Pods, 0)}
	g.Nodes++
	g.Allocatable, g.Requested = g.Allocatable.addRoom(size), g.Requested.addRoom(used)
	// Without a pod slot, no CPU or memory of the node can be used.
	full := closed || free.Pods == 0
	if full || free.Memory < max(typical.Memory, 1) {
		g.Stranded.CPU += free.CPU
	}

	if full || free.CPU < max(typical.CPU, 1) {
		g.Stranded.Memory += free.Memory
	}
	switch {
	case closed:
		g.Closed++
	// The largest node has the most CPU and, with the same CPU, the most memory. Largest does not
	// mix several nodes.
	case free.Pods > 0 && (g.LargestNode == "" || free.CPU > g.Largest.CPU || free.CPU == g.Largest.CPU && free.Memory > g.Largest.Memory):
		g.Largest, g.LargestNode = Room{CPU: free.CPU, Memory: free.Memory}, n.Name
	}
}

// addRoom returns the sum of two rooms.
func (r Room) addRoom(o Room) Room {
	return Room{rules.Sum(r.CPU, o.CPU), rules.Sum(r.Memory, o.Memory), rules.Sum(r.Pods, o.Pods)}
}
