// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Cluster is the state that decisions are based on. It has one owner, and is not safe for
// concurrent use.
//
// Invariants, which hold except within Suppose and Visit: a placed pod is in pods, and either among
// the Pods of its node or, if its node is unknown, in strays. A nominated pod is in nominated, and
// either among the Nominated of its node or in absent. Placing a pod ends its nomination. The sums
// of a node, and its Room, are sums over its Pods. Every change to a node or its pods is in Log.
// [Cluster.Recount] restores the invariants after a panic.
type Cluster struct {
	// Nodes by index; nil where a node was removed and its index is free.
	Nodes []*Node
	// Rooms holds the Room of each node, by the same index.
	Rooms []Room
	Objects
	Log Log
	// Looks counts the disruption budgets examined, and the pod classes matched against budgets.
	// The limits on the work of a scheduling attempt include both, because users may create any
	// number of budgets.
	Looks int

	// These caches of costly results are derived from the tables of Objects. Each query updates
	// them first.
	budgets        budgetIndex
	claimSelectors objectSelectors

	nodes       map[string]*Node
	free        []int32                       // indices of Nodes that can be reused
	pods        Set[Pod]                      // placed pods, on known nodes or not, by UID
	strays      map[string]map[types.UID]*Pod // placed pods on unknown nodes, by node name
	priorities  map[int32]int                 // number of pods on nodes, by priority
	nominated   map[types.UID]*Pod
	absent      map[string][]*Pod  // nominated pods of unknown nodes, by node name
	supposing   int                // nesting depth of the calls of Suppose
	release     bool               // see ReleaseClaims
	away        map[types.UID]*Pod // pods removed from their nodes by Suppose
	classes     classTable
	parts       partTable
	imageStates map[string]*ImageState

	// IsPending, if set, reports whether a pod with that UID waits for a node. The claims of a pod
	// that is neither placed nor pending are about to be released.
	IsPending func(uid types.UID) bool

	// ImagesVersion grows whenever the size of an image, or the share of nodes with it, may have
	// changed.
	ImagesVersion uint64
}

// ImageState is the state of an image as reported by the nodes of the cluster. Like upstream, an
// image has one size, even if nodes report different ones.
type ImageState struct {
	Size  int64 // as reported by the first node with the image
	Nodes int   // number of nodes with the image

	counted uint64 // ImagesVersion when Nodes was last changed
}

// New returns an empty cluster.
func New() *Cluster {
	return &Cluster{
		nodes: map[string]*Node{}, strays: map[string]map[types.UID]*Pod{},
		priorities: map[int32]int{}, nominated: map[types.UID]*Pod{}, absent: map[string][]*Pod{},
		parts: newPartTable(), imageStates: map[string]*ImageState{},
	}
}

// logChange logs a change. Callers make the change first, since readers look up the details in the
// node itself. The log may contain the index of a removed node: Nodes then holds nil at the index,
// or the node that now uses it.
func (c *Cluster) logChange(change Change) { c.Log.add(change, len(c.Nodes)) }

// Node returns the node with that name, or nil.
func (c *Cluster) Node(name string) *Node { return c.nodes[name] }

// Len returns the number of nodes.
func (c *Cluster) Len() int { return len(c.nodes) }

// SortedNodes returns all nodes by name. It sorts on each call.
func (c *Cluster) SortedNodes() []*Node {
	return slices.SortedFunc(maps.Values(c.nodes), func(a, b *Node) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
}

// Image returns the state of the image with that name, or nil if no node has it. Names are used as
// listed by nodes, without normalization.
func (c *Cluster) Image(name string) *ImageState { return c.imageStates[name] }

// NamespaceLabels returns the labels of a namespace; nil if it is unknown.
func (c *Cluster) NamespaceLabels(name string) labels.Set {
	if ns, ok := c.Namespaces.Get("", name); ok {
		return ns.Labels
	}
	return nil
}

// SetNode adds or updates a node. It does not keep the object, but may keep its maps and slices,
// which must not be modified afterwards. An irrelevant update, such as a heartbeat, costs a few
// hashes and leaves no entry in the log.
func (c *Cluster) SetNode(object *v1.Node) *Node {
	n, known := c.nodes[object.Name]
	if !known {
		n = c.addNode(object.Name)
	}

	before, host := n.Parts, n.Hostname
	n.Parts = c.parts.internParts(object)
	n.Hostname.Value, n.Hostname.Known = object.Labels[v1.LabelHostname]
	if known && n.Parts == before && n.Hostname == host {
		return n
	}

	// The node may have been the last user of its previous parts.
	c.parts.dropUnused(c.nodes)
	if n.Images != before.Images {
		c.countImages(before.Images, -1)
		c.countImages(n.Images, 1)
	}

	room := &c.Rooms[n.Index]
	// A node may report any number of pods; the room counts them in 32 bits.
	room.CPU, room.Memory, room.MaxPods = n.Size.MilliCPU, n.Size.Memory, int32(min(n.Size.Pods, 1<<30))
	room.PerCPU, room.PerMemory = float32(1/float64(room.CPU)), float32(1/float64(room.Memory))
	c.logChange(Change{Node: n.Index, Kind: NodeChanged})
	if !known {
		// Pods may be observed before their node, and remain if the node is deleted and added
		// again.
		for _, p := range c.strays[n.Name] {
			c.attachPod(p, n)
		}
		delete(c.strays, n.Name)
		c.takeNominations(n)
	}

	return n
}

// addNode adds a node, at a free index if there is one. RemoveNode has logged the removal of the
// previous node with that index, so a reader that follows the log never confuses the two nodes.
func (c *Cluster) addNode(name string) *Node {
	n := &Node{Name: name}
	n.here = &Whereabouts{Node: n, NodeName: name}
	if last := len(c.free) - 1; last >= 0 {
		n.Index, c.free = c.free[last], c.free[:last]
		c.Nodes[n.Index], c.Rooms[n.Index] = n, Room{}
	} else {
		n.Index = int32(len(c.Nodes))
		c.Nodes, c.Rooms = append(c.Nodes, n), append(c.Rooms, Room{})
	}
	c.nodes[name] = n
	return n
}

// RemoveNode removes a node. Pods placed on it or nominated to it are kept until they are removed
// themselves. If the node is added again, they are assigned to it.
func (c *Cluster) RemoveNode(name string) {
	n, ok := c.nodes[name]
	if !ok {
		return
	}

	for len(n.Pods) > 0 {
		p := n.Pods[len(n.Pods)-1]
		c.detachPod(p)
		c.addStray(p)
	}

	if len(n.Nominated) > 0 {
		c.absent[name], n.Nominated = n.Nominated, nil
	}
	c.countImages(n.Images, -1)
	delete(c.nodes, name)
	c.Nodes[n.Index], c.Rooms[n.Index] = nil, Room{}
	c.free = append(c.free, n.Index)
	c.logChange(Change{Node: n.Index, Kind: NodeChanged})
}

// countImages adds or removes the images of a node. Each name of an image counts once for the node,
// regardless of repetitions in the node's list.
func (c *Cluster) countImages(set *ImageSet, sign int) {
	// Scores depend on the share of nodes with an image, so adding or removing a node changes them.
	if len(c.imageStates) > 0 || set != nil && len(set.Images) > 0 {
		c.ImagesVersion++
	}
	if set == nil {
		return
	}

	for i := range set.Images {
		for _, name := range set.Images[i].Names {
			state, ok := c.imageStates[name]
			if !ok {
				state = &ImageState{Size: set.Images[i].SizeBytes}
				c.imageStates[name] = state
			}
			if state.counted == c.ImagesVersion { // for this node
				continue
			}
			state.counted = c.ImagesVersion
			if state.Nodes += sign; state.Nodes <= 0 {
				delete(c.imageStates, name)
			}
		}
	}
}

// DropUnused drops the data kept for large deleted pods, and for deleted objects. All such data is
// bounded, but the bounds are enforced only on additions: without additions, the data of a tenant's
// deleted objects would remain. Call it from time to time. It does not affect holders of a class.
func (c *Cluster) DropUnused() {
	c.classes.dropLarge()
	c.Log.dropOld()
	c.claimSelectors.dropGone(c.Claims.hasObject)
	if c.budgets.spaces != nil { // without budgets there are no queries, which would follow the table
		c.budgets.follow(&c.Budgets)
	}
	c.budgets.selectors.dropGone(c.Budgets.hasObject)
	for _, s := range c.budgets.spaces {
		s.dropLarge()
	}
}
