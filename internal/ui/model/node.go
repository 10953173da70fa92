// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// NodeInfo is the stored part of a node's object. It shares maps and slices with the object, and is
// immutable.
type NodeInfo struct {
	eviction              eviction.Node
	zone, roll, ready     string
	cordoned              bool
	labels                map[string]string
	taints                []v1.Taint
	conditions            []v1.NodeCondition
	allocatable, capacity v1.ResourceList
	system                v1.NodeSystemInfo
	created               int64
}

// NodeOf extracts the stored part of an object. The object must not be changed afterwards.
func NodeOf(object *v1.Node) *NodeInfo {
	return &NodeInfo{
		eviction: eviction.NodeOf(object), zone: object.Labels[v1.LabelTopologyZone], cordoned: object.Spec.Unschedulable,
		roll:   cutText(object.Annotations[execute.RollAnnotation]),
		labels: object.Labels, taints: object.Spec.Taints, conditions: object.Status.Conditions, allocatable: object.Status.Allocatable,
		capacity: object.Status.Capacity, system: object.Status.NodeInfo, created: object.CreationTimestamp.UnixMilli(),
		ready: string(disruption.ReadinessOf(object)),
	}
}

// troubleConditions names the conditions, other than Ready, that show a problem by being true. The
// list is never nil.
func (n *NodeInfo) troubleConditions() []string {
	list := []string{}
	for i := range n.conditions {
		if c := &n.conditions[i]; c.Type != v1.NodeReady && c.Status == v1.ConditionTrue {
			list = append(list, string(c.Type))
		}
	}
	return list
}

// node is an observed node, or one referenced by a pod. An entry without info represents a missing
// node.
type node struct {
	name string
	info *NodeInfo // nil: not observed
	list uint32    // number of the last list that contained the object
	pods map[types.UID]*Pod

	cpu, memory, count int64                     // totals of the pods that take room
	others             map[v1.ResourceName]int64 // totals of other resources in whole units; never 0
	leaving            int                       // number of its pods in Cluster.evictions
	shown              *Node                     // shown row; nil: not shown
}

// movePod adds a pod's requests to the node's totals or, with -1, subtracts them. Both calls must
// see the same state of the pod.
func (n *node) movePod(p *Pod, sign int64) {
	if p.takesRoom() {
		n.cpu += sign * p.cpu
		n.memory += sign * p.memory
		n.count += sign
		for name, quantity := range p.others {
			if n.others == nil {
				n.others = map[v1.ResourceName]int64{}
			}
			// Remove zeros, so that rows can be compared.
			if n.others[name] += sign * quantity.Value(); n.others[name] == 0 {
				delete(n.others, name)
			}
		}
	}
}

// nodeRow returns the node's row, without blocks.
func (n *node) nodeRow() Node {
	row := Node{
		Name: n.name, Zone: n.info.zone, Ready: n.info.ready, Cordoned: n.info.cordoned, Roll: n.info.roll,
		Taints: taintTexts(n.info.taints), Trouble: n.info.troubleConditions(),
		CPU:     [2]int64{n.cpu, n.info.allocatable.Cpu().MilliValue()},
		Memory:  [2]int64{n.memory, n.info.allocatable.Memory().Value()},
		Pods:    [2]int64{n.count, n.info.allocatable.Pods().Value()},
		Leaving: n.leaving,
	}

	for name, quantity := range n.info.allocatable {
		// Nodes often report resources with an amount of zero, such as huge pages.
		if basic[name] || quantity.IsZero() {
			continue
		}
		if row.Others == nil {
			row.Others = map[string][2]int64{}
		}
		row.Others[string(name)] = [2]int64{n.others[name], quantity.Value()}
	}

	return row
}

// basic lists the resources of every node.
var basic = map[v1.ResourceName]bool{v1.ResourceCPU: true, v1.ResourceMemory: true, v1.ResourcePods: true}

// taintTexts returns the taints in the page's notation, in order.
func taintTexts(taints []v1.Taint) []string {
	list := make([]string, len(taints))
	for i := range taints {
		list[i] = taints[i].ToString()
	}
	return list
}

// same reports whether two rows are equal. It must cover every field of Node.
func (n *Node) same(o *Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && n.Ready == o.Ready && n.Cordoned == o.Cordoned && n.CPU == o.CPU &&
		n.Memory == o.Memory &&
		n.Pods == o.Pods && n.Leaving == o.Leaving && slices.Equal(n.Taints, o.Taints) && slices.Equal(n.Trouble, o.Trouble) &&
		n.Roll == o.Roll && slices.Equal(n.Waits, o.Waits) &&
		maps.Equal(n.Others, o.Others) && slices.EqualFunc(n.Blocks, o.Blocks, Block.same)
}

// nodeEvents returns the changes between two states of a node, since the API creates no events for
// them. Changes of labels other than the zone, and of conditions other than Ready, create no event.
func nodeEvents(before, after *NodeInfo) (list []Event) {
	say := func(warning bool, reason, message string) {
		list = append(list, Event{Warning: warning, Reason: reason, Message: message})
	}
	was, is := taintTexts(before.taints), taintTexts(after.taints)
	for _, taint := range is {
		if !slices.Contains(was, taint) {
			// A taint that evicts is a warning.
			say(strings.HasSuffix(taint, ":"+string(v1.TaintEffectNoExecute)), "TaintAdded", taint)
		}
	}

	for _, taint := range was {
		if !slices.Contains(is, taint) {
			say(false, "TaintRemoved", taint)
		}
	}

	if before.ready != after.ready {
		say(after.ready != string(v1.ConditionTrue), "ReadyChanged", "Ready was "+orUnknown(before.ready)+", is "+orUnknown(after.ready))
	}
	if before.zone != after.zone {
		say(false, "ZoneChanged", "zone was "+orUnknown(before.zone)+", is "+orUnknown(after.zone))
	}
	return list
}

// orUnknown replaces a missing part of a message.
func orUnknown(s string) string { return cmp.Or(s, "unknown") }

// touchAll marks the rows of all keys of a map as dirty.
func touchAll[K comparable, V any](dirty map[K]bool, of map[K]V) {
	for key := range of {
		dirty[key] = true
	}
}

// sortedNames lists a map's keys in order.
func sortedNames[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// mostRoomy is the maximum number of nodes for which pods are drawn in their nodes. With more
// nodes, even large screens have no room for pods, and sending them would be useless. The number
// counts the whole cluster, whatever part the page shows.
const mostRoomy = 1000

// judgeRoom decides whether nodes have room for their pods. A change of the decision marks all
// nodes. It is called before each frame.
func (c *Cluster) judgeRoom() {
	nodes := 0
	for _, n := range c.nodes {
		// Entries without a node object are not drawn.
		if n.info != nil {
			nodes++
		}
	}
	roomy := nodes <= mostRoomy
	if roomy == c.roomy {
		return
	}
	c.roomy = roomy
	touchAll(c.dirtyNodes, c.nodes)
}

// blocksOf returns the pods of a node sorted by name, so that pods keep their places from one frame
// to the next.
func (c *Cluster) blocksOf(n *node) []Block {
	list := make([]Block, 0, len(n.pods))
	for _, p := range n.pods {
		if !p.takesRoom() {
			continue
		}
		b := Block{
			Namespace: p.eviction.Name.Namespace, Name: p.eviction.Name.Name, Workload: p.workload, Priority: p.priority,
			CPU: p.cpu, Memory: p.memory,
		}
		for name, quantity := range p.others {
			if b.Others == nil {
				b.Others = map[string]int64{}
			}
			b.Others[string(name)] = quantity.Value()
		}
		_, b.Leaves = c.leavingRow(p)
		list = append(list, b)
	}

	slices.SortFunc(list, Block.compare)
	return list
}

// compare orders by namespace and name.
func (b Block) compare(o Block) int {
	return cmp.Or(cmp.Compare(b.Namespace, o.Namespace), cmp.Compare(b.Name, o.Name))
}

// same reports whether two blocks are equal.
func (b Block) same(o Block) bool {
	return b.Namespace == o.Namespace && b.Name == o.Name && b.Workload == o.Workload && b.Priority == o.Priority &&
		b.CPU == o.CPU && b.Memory == o.Memory && b.Leaves == o.Leaves && maps.Equal(b.Others, o.Others)
}
