// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"slices"
)

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
	for name := range c.nodes {
		c.dirtyNodes[name] = true
	}
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
