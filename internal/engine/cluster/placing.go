// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"hash/maphash"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file counts pods on nodes. All changes to the pods of a node go through attachPod and
// detachPod, which maintain the node's sums, its Room and the log.

// SetPod records the API state of a pod. A pod with a node is counted on that node. A pod without a
// node is not counted, and is removed if it was counted before. A terminal pod is removed, and
// SetPod returns nil.
func (c *Cluster) SetPod(object *v1.Pod) *Pod {
	if rules.IsTerminal(object) {
		c.RemovePod(object.UID)
		return nil
	}
	if object.Spec.NodeName == "" {
		c.RemovePod(object.UID)
		return c.Pending(object)
	}

	p := c.Pending(object)
	node := object.Spec.NodeName
	if old := c.Pod(object.UID); old != nil {
		// Most updates of a pod change nothing relevant. Keeping the same Pod then avoids updating
		// the sums, and preserves references to the Pod.
		if old.Class == p.Class && old.NodeName == node && old.Terminating == p.Terminating {
			if old.Started != p.Started || old.Preempted != p.Preempted {
				old.Started, old.Preempted = p.Started, p.Preempted
				if old.Node != nil {
					c.logChange(Change{Node: old.Node.Index, Kind: PodChanged})
				}
			}
			old.Created, old.Generation = p.Created, p.Generation
			return old
		}
		// A plugin allocated the devices; they are not part of the object.
		if old.NodeName == node {
			p.SetDevices(old.Devices)
		}
		c.RemovePod(object.UID)
	}

	c.placePod(p, node)
	return p
}

// Pending converts a pod without counting it. It hashes the whole spec to find the class, which it
// creates if necessary.
func (c *Cluster) Pending(object *v1.Pod) *Pod {
	p := NewPod(c.classes.classOf(object), object.Name, object.UID)
	p.SetNominated(object.Status.NominatedNodeName)
	p.Created, p.Generation = TimeOf(object.CreationTimestamp.Time), object.Generation
	p.Terminating, p.Preempted = object.DeletionTimestamp != nil, isPreempted(object)
	if object.Status.StartTime != nil {
		p.Started = TimeOf(object.Status.StartTime.Time)
	}
	return p
}

// Place counts a pod on a node and ends its nomination. The pod must not be placed yet.
func (c *Cluster) Place(p *Pod, n *Node) {
	c.placePod(p, n.Name)
}

// Return adds back a pod removed by RemovePod, on the node named by its NodeName, known or not.
func (c *Cluster) Return(p *Pod) { c.placePod(p, p.NodeName) }

// placePod counts a pod on the node with that name, or as a stray. Placing a pod twice would
// corrupt every sum from then on, so placePod panics immediately, while the cause is still visible.
func (c *Cluster) placePod(p *Pod, node string) {
	if c.Pod(p.UID()) != nil {
		panic(fmt.Sprintf("pod %s/%s (%s) is placed twice", p.Namespace(), p.Name(), p.UID()))
	}
	c.pods.Add(hashOfUID(p.UID()), p)
	c.Unnominate(p.UID())
	c.classes.addPod(p.Class)
	if n, ok := c.nodes[node]; ok {
		c.attachPod(p, n)
		return
	}
	p.SetNodeName(node)
	c.addStray(p)
}

var uidSeed = maphash.MakeSeed()

func hashOfUID(uid types.UID) uint32 { return ShortHash(maphash.String(uidSeed, string(uid))) }

// Pod returns the placed pod with this UID, on a known node or not, or nil.
func (c *Cluster) Pod(uid types.UID) *Pod {
	return c.pods.Find(hashOfUID(uid), func(p *Pod) bool { return p.UID() == uid })
}

// Pods returns the number of placed pods, on known nodes or not.
func (c *Cluster) Pods() int { return c.pods.Len() }

// RemovePod removes a pod, placed or nominated. It ignores an unknown pod.
func (c *Cluster) RemovePod(uid types.UID) {
	c.Unnominate(uid)
	p := c.pods.Remove(hashOfUID(uid), func(p *Pod) bool { return p.UID() == uid })
	if p == nil {
		return
	}

	// Record the pod, so that a panic within Suppose does not lose it.
	c.thoughtAway(p)
	c.classes.removePod(p.Class)

	if p.Node != nil {
		c.detachPod(p)
		return
	}

	delete(c.strays[p.NodeName], uid)
	if len(c.strays[p.NodeName]) == 0 {
		delete(c.strays, p.NodeName)
	}
}

// addStray keeps a pod on an unknown node: watches of pods and nodes are not synchronized.
func (c *Cluster) addStray(p *Pod) {
	rules.Inner(c.strays, p.NodeName)[p.UID()] = p
}

// attachPod adds a placed pod to its node, and detachPod removes it. They maintain only the sums
// and the log; the callers maintain Cluster.pods.
func (c *Cluster) attachPod(p *Pod, n *Node) {
	p.setNode(n, n.Name) // all pods share the string of the node's name
	p.place = int32(len(n.Pods))
	n.Pods = append(n.Pods, p)
	c.priorities[p.Class.Priority]++
	c.countPod(n, p, 1)
	c.logChange(Change{Node: n.Index, Kind: PodAdded, Class: p.Class, Terminating: p.Terminating})
}

// detachPod moves the node's last pod into the gap, so that the cost of the removal does not depend
// on the number of pods.
func (c *Cluster) detachPod(p *Pod) {
	n := p.Node
	last := len(n.Pods) - 1
	n.Pods[p.place] = n.Pods[last]
	n.Pods[p.place].place = p.place
	n.Pods[last] = nil
	n.Pods = n.Pods[:last]
	p.leaveNode()
	if c.priorities[p.Class.Priority]--; c.priorities[p.Class.Priority] == 0 {
		delete(c.priorities, p.Class.Priority)
	}
	c.countPod(n, p, -1)
	c.logChange(Change{Node: n.Index, Kind: PodRemoved, Class: p.Class, Terminating: p.Terminating})
}

// HasLower reports whether a pod on a node has a lower priority.
func (c *Cluster) HasLower(priority int32) bool {
	for other := range c.priorities {
		if other < priority {
			return true
		}
	}
	return false
}

// countPod adds a pod to the node's sums, or subtracts it. The node's list of pods is already
// updated.
func (c *Cluster) countPod(n *Node, p *Pod, sign int32) {
	class, room := p.Class, &c.Rooms[n.Index]
	n.holdDevices(p, int64(sign))
	switch {
	case sign > 0:
		n.Requested.add(&class.Requests)
		room.addNonZero(class)
	// A sum has overflowed, so the pod's share of the sum is unknown: recompute the sum of the
	// remaining pods.
	case !n.Requested.subtractFrom(&class.Requests):
		n.addUp()
		fallthrough
	case !room.takeNonZero(class):
		room.NonZeroCPU, room.NonZeroMemory = 0, 0
		for _, p := range n.Pods {
			room.addNonZero(p.Class)
		}
	}

	room.RequestedCPU, room.RequestedMemory = n.Requested.MilliCPU, n.Requested.Memory
	room.Pods = int32(len(n.Pods))
	if class.HasAffinity() {
		n.Affine += sign
	}

	if len(class.RequiredAntiAffinity) > 0 {
		n.AntiAffine += sign
	}
}

// addNonZero adds the pod's amounts for scores, where a missing request counts as a default.
func (r *Room) addNonZero(class *PodClass) {
	r.NonZeroCPU = rules.Sum(r.NonZeroCPU, class.NonZeroCPU)
	r.NonZeroMemory = rules.Sum(r.NonZeroMemory, class.NonZeroMemory)
}

// takeNonZero reverts addNonZero. It returns false if a sum may have overflowed; see
// Resources.subtractFrom.
func (r *Room) takeNonZero(class *PodClass) bool {
	if r.NonZeroCPU == math.MaxInt64 || r.NonZeroMemory == math.MaxInt64 {
		return false
	}
	r.NonZeroCPU -= class.NonZeroCPU
	r.NonZeroMemory -= class.NonZeroMemory
	return true
}

// Visit counts a copy of a pending pod on a node, as a hypothetical placement, and returns the
// copy, which Leave removes again. The pod itself, and all other data about it, remain unchanged.
// Visit is cheaper than Place and RemovePod, since it updates no maps, but it appears in the log.
func (c *Cluster) Visit(p *Pod, n *Node) *Pod {
	guest := *p
	c.attachPod(&guest, n)
	return &guest
}

// Leave ends a visit.
func (c *Cluster) Leave(guest *Pod) { c.detachPod(guest) }
