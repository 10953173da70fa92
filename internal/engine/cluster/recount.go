// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// This file makes temporary changes: Suppose makes a change and reverts it, and Recount restores
// the state after a panic in between.

// Suppose makes a change to pods on nodes and undoes it. Readers of the log see neither the change
// nor the undo. After a panic in between, the cluster remains in the middle of the change until
// Recount restores it. The log is rewound, so that readers do not process changes that cancel each
// other out.
func (c *Cluster) Suppose(change, undo func()) {
	over := c.Supposing()
	change()
	undo()
	over()
}

// Supposing is Suppose for a change made in several places. The caller must call end after undoing
// the whole change. Calls may be nested.
func (c *Cluster) Supposing() (end func()) {
	position := c.Log.Len()
	c.supposing++
	return func() {
		if c.supposing--; c.supposing == 0 {
			clear(c.away)
		}
		c.Log.Rewind(position)
	}
}

// ReleaseClaims begins an experiment in which device claims count as released if none of their pods
// is on its node, as after the removal of these pods. end ends the experiment.
func (c *Cluster) ReleaseClaims() (end func()) {
	before := c.release
	c.release = true
	return func() { c.release = before }
}

// ReleasesClaims reports whether an experiment of ReleaseClaims is in progress.
func (c *Cluster) ReleasesClaims() bool { return c.release }

// Recount restores the state reported by the API, after a panic in the middle of a change: pods
// removed by Suppose are added back, pods of a Visit are removed, and every node's sums match its
// pods. It returns the number of corrected nodes, and logs each as changed. It leaves a correct
// cluster unchanged and returns 0. It costs a pass over all pods.
func (c *Cluster) Recount() (mended int) {
	c.supposing, c.release = 0, false
	// Use a fixed order, so that the order of a node's pods is deterministic.
	for _, uid := range slices.Sorted(maps.Keys(c.away)) {
		if p := c.away[uid]; c.Pod(uid) == nil {
			p.setNode(nil, p.NodeName)
			p.Class.pods++
			c.pods.Add(hashOfUID(uid), p)
		}
	}

	clear(c.away)
	standing := map[string][]*Pod{}
	for _, p := range slices.SortedFunc(c.pods.All, func(a, b *Pod) int { return cmp.Compare(a.UID(), b.UID()) }) {
		if _, known := c.nodes[p.NodeName]; known {
			standing[p.NodeName] = append(standing[p.NodeName], p)
		}
	}

	for _, n := range c.Nodes {
		if n != nil && !c.sumsAgree(n, standing[n.Name]) {
			c.rebuildSums(n, standing[n.Name])
			mended++
		}
	}
	return mended
}

// sumsAgree reports whether the node has exactly these pods, in any order, and sums that match
// them.
func (c *Cluster) sumsAgree(n *Node, pods []*Pod) bool {
	if len(n.Pods) != len(pods) {
		return false
	}
	for _, p := range pods {
		if p.Node != n || int(p.place) >= len(n.Pods) || n.Pods[p.place] != p {
			return false
		}
	}
	fresh, room := c.sumsOf(n, pods)
	return c.Rooms[n.Index] == room && n.Affine == fresh.Affine && n.AntiAffine == fresh.AntiAffine &&
		n.Requested.equalTo(&fresh.Requested) &&
		slices.Equal(n.Held, fresh.Held)
}

// sumsOf returns the sums of the node after placing these pods in sequence.
func (c *Cluster) sumsOf(n *Node, pods []*Pod) (*Node, Room) {
	// Keep the allocatable amounts, and start with zero for the contributions of pods.
	fresh, room := &Node{Held: make([]int64, len(n.Held))}, c.Rooms[n.Index]
	room.NonZeroCPU, room.NonZeroMemory = 0, 0
	for _, p := range pods {
		fresh.Requested.add(&p.Class.Requests)
		fresh.holdDevices(p, 1)
		room.addNonZero(p.Class)
		if p.Class.HasAffinity() {
			fresh.Affine++
		}
		if len(p.Class.RequiredAntiAffinity) > 0 {
			fresh.AntiAffine++
		}
	}
	room.RequestedCPU, room.RequestedMemory, room.Pods = fresh.Requested.MilliCPU, fresh.Requested.Memory, int32(len(pods))
	return fresh, room
}

// rebuildSums gives a node these pods and their sums, regardless of its previous state.
func (c *Cluster) rebuildSums(n *Node, pods []*Pod) {
	fresh, room := c.sumsOf(n, pods)
	n.Requested, n.Affine, n.AntiAffine, c.Rooms[n.Index] = fresh.Requested, fresh.Affine, fresh.AntiAffine, room
	n.Pods, n.Held = slices.Clone(pods), fresh.Held
	for i, p := range pods {
		p.setNode(n, n.Name)
		p.place = int32(i)
	}
	c.logChange(Change{Node: n.Index, Kind: NodeChanged})
}

// equalTo compares amounts. A scalar resource of 0 equals an absent one.
func (r *Resources) equalTo(o *Resources) bool {
	covers := func(a, b *Resources) bool {
		for name, amount := range a.Scalars {
			if amount != b.Scalars[name] {
				return false
			}
		}
		return true
	}
	return r.MilliCPU == o.MilliCPU && r.Memory == o.Memory && r.EphemeralStorage == o.EphemeralStorage && covers(r, o) && covers(o, r)
}

// thoughtAway records a pod removed from its node within Suppose.
func (c *Cluster) thoughtAway(p *Pod) {
	if c.supposing == 0 {
		return
	}
	if c.away == nil {
		c.away = map[types.UID]*Pod{}
	}
	c.away[p.UID()] = p
}
