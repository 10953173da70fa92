package cluster

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Suppose does something to pods on nodes and undoes it. Whoever reads the log learns of neither. A
// panic in between leaves the cluster as it is at that moment: Recount then puts right what the
// undoing would have.
func (c *Cluster) Suppose(change, undo func()) {
	over := c.Supposing()
	change()
	undo()
	over()
}

// Supposing is Suppose for a change that is not made in one place. It is over when all is undone.
func (c *Cluster) Supposing() (over func()) {
	position := c.Log.Len()
	c.supposing++
	return func() {
		if c.supposing--; c.supposing == 0 {
			clear(c.away)
		}
		c.Log.Rewind(position)
	}
}

// Recount makes the cluster what the API has said, after a panic in the middle of a change: pods
// that were only thought away are back, guests of a visit are gone, and what is counted on every
// node is the sum over its pods. It returns how many nodes were not so, and tells the log of them.
func (c *Cluster) Recount() (mended int) {
	c.supposing = 0
	for _, uid := range slices.Sorted(maps.Keys(c.away)) {
		if p := c.away[uid]; c.pods[uid] == nil {
			p.Node = nil
			p.Class.pods++
			c.pods[uid] = p
		}
	}
	clear(c.away)
	standing := map[string][]*Pod{}
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		p := c.pods[uid]
		if _, known := c.nodes[p.NodeName]; known {
			standing[p.NodeName] = append(standing[p.NodeName], p)
		}
	}
	for _, n := range c.Nodes {
		if n != nil && !c.agrees(n, standing[n.Name]) {
			c.rebuild(n, standing[n.Name])
			mended++
		}
	}
	return mended
}

// agrees tells whether the node has these pods, in whatever order, and their sums.
func (c *Cluster) agrees(n *Node, pods []*Pod) bool {
	if len(n.Pods) != len(pods) {
		return false
	}
	for _, p := range pods {
		if p.Node != n || int(p.place) >= len(n.Pods) || n.Pods[p.place] != p {
			return false
		}
	}
	fresh, room := c.sumsOf(n, pods)
	return c.Rooms[n.Index] == room && n.Affine == fresh.Affine && n.AntiAffine == fresh.AntiAffine && n.Requested.equal(&fresh.Requested)
}

// sumsOf counts the pods as if they came one after the other.
func (c *Cluster) sumsOf(n *Node, pods []*Pod) (*Node, Room) {
	fresh, room := &Node{}, c.Rooms[n.Index]
	room.NonZeroCPU, room.NonZeroMemory = 0, 0
	for _, p := range pods {
		fresh.Requested.add(&p.Class.Requests)
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

func (c *Cluster) rebuild(n *Node, pods []*Pod) {
	fresh, room := c.sumsOf(n, pods)
	n.Requested, n.Affine, n.AntiAffine, c.Rooms[n.Index] = fresh.Requested, fresh.Affine, fresh.AntiAffine, room
	n.Pods = slices.Clone(pods)
	for i, p := range pods {
		p.Node, p.place = n, int32(i)
	}
	c.log(Change{Node: n.Index, Kind: NodeChanged})
}

// equal compares amounts; a scalar of which nothing is left is none.
func (r *Resources) equal(o *Resources) bool {
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

// thoughtAway notes a pod that is taken from its node in a supposition.
func (c *Cluster) thoughtAway(p *Pod) {
	if c.supposing == 0 {
		return
	}
	if c.away == nil {
		c.away = map[types.UID]*Pod{}
	}
	c.away[p.UID] = p
}
