// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// This file keeps the nominated pods: pending pods with a node that reserves room for them. They
// are not in the sums of the node; decisions about a node add the relevant nominated pods.

// Nominate records that a pending pod is nominated to the node with that name, known or not. An
// empty name removes the record. A pod is nominated to at most one node: an earlier record is
// replaced. The cluster keeps p, which the caller must not modify any more.
func (c *Cluster) Nominate(p *Pod, node string) {
	c.Unnominate(p.UID())
	p.SetNominated(node)
	if node == "" {
		return
	}
	c.nominated[p.UID()] = p
	if n, ok := c.nodes[node]; ok {
		n.Nominated = append(n.Nominated, p)
		c.logChange(Change{Node: n.Index, Kind: Nomination})
	} else {
		c.absent[node] = append(c.absent[node], p)
	}
}

// SetNominated sets Nominated, without a record.
func (p *Pod) SetNominated(node string) {
	p.setWhereabouts(Whereabouts{p.Node, p.NodeName, node, p.Devices})
}

// Unnominate removes the record of a pod's nomination. It does not change Pod.Nominated.
func (c *Cluster) Unnominate(uid types.UID) {
	p, ok := c.nominated[uid]
	if !ok {
		return
	}
	delete(c.nominated, uid)
	if n, ok := c.nodes[p.Nominated]; ok {
		n.Nominated = exceptFor(n.Nominated, uid)
		c.logChange(Change{Node: n.Index, Kind: Nomination})
		return
	}
	if c.absent[p.Nominated] = exceptFor(c.absent[p.Nominated], uid); len(c.absent[p.Nominated]) == 0 {
		delete(c.absent, p.Nominated)
	}
}

// exceptFor returns the pods without the pod with that UID.
func exceptFor(pods []*Pod, uid types.UID) []*Pod {
	return slices.DeleteFunc(pods, func(o *Pod) bool { return o.UID() == uid })
}

// Renew replaces a nominated pod after a change of its labels or requests. It keeps the pod's
// nomination, and its position among the pods nominated to that node. It ignores pods without a
// nomination.
func (c *Cluster) Renew(p *Pod) {
	old, ok := c.nominated[p.UID()]
	if !ok || old.Class == p.Class {
		return
	}
	renewed := *p
	renewed.SetNominated(old.Nominated)
	c.nominated[p.UID()] = &renewed
	nominees := c.absent[old.Nominated]
	if n, ok := c.nodes[old.Nominated]; ok {
		nominees = n.Nominated
		c.logChange(Change{Node: n.Index, Kind: Nomination})
	}
	nominees[slices.Index(nominees, old)] = &renewed
}

// takeNominations assigns to an added node the pods already nominated to it.
func (c *Cluster) takeNominations(n *Node) {
	if n.Nominated = c.absent[n.Name]; len(n.Nominated) > 0 {
		delete(c.absent, n.Name)
		c.logChange(Change{Node: n.Index, Kind: Nomination})
	}
}

// Nominated returns the pending pod with that UID, or nil if it is not nominated to a node, known
// or not.
func (c *Cluster) Nominated(uid types.UID) *Pod { return c.nominated[uid] }

// NominatedNodes lists the nodes with nominated pods, by index.
func (c *Cluster) NominatedNodes() []*Node {
	var nodes []*Node
	for _, p := range c.nominated {
		if n, ok := c.nodes[p.Nominated]; ok {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b *Node) int { return int(a.Index - b.Index) })
	return slices.Compact(nodes)
}

// Nominations returns the number of pods nominated to a node, known or not.
func (c *Cluster) Nominations() int { return len(c.nominated) }
