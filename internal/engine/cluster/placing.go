package cluster

import (
	"fmt"
	"hash/maphash"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file counts pods on nodes. Every way to change which pods a node has ends in attachPod and
// detachPod, which keep the node's sums, its Room and the log.

// SetPod records a pod as the API has it. A pod with a node is counted on that node. A pod without
// one is not counted, and is forgotten if it was. A terminal pod is forgotten, and the returned pod
// is nil.
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
		// Most updates of a pod change nothing that counts. Keeping the same Pod then spares the
		// sums, and whatever refers to it.
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
		// Devices were given by a plugin: the object's new state says nothing about them.
		if old.NodeName == node {
			p.SetDevices(old.Devices)
		}
		c.RemovePod(object.UID)
	}

	c.placePod(p, node)
	return p
}

// Pending converts a pod without counting it anywhere. The class is made if need be, so this costs
// a hash of the whole spec.
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

// Place counts a pod on a node. The pod must not have a node yet. It ends the pod's nomination.
func (c *Cluster) Place(p *Pod, n *Node) {
	c.placePod(p, n.Name)
}

// Return counts a pod again that RemovePod has forgotten, on the node that it names, known or not.
func (c *Cluster) Return(p *Pod) { c.placePod(p, p.NodeName) }

// placePod counts a pod on the node of that name, or as a stray. Placing it twice would corrupt
// every sum from then on, so it panics at once, where the cause can still be seen.
func (c *Cluster) placePod(p *Pod, node string) {
	if c.Pod(p.UID) != nil {
		panic(fmt.Sprintf("pod %s/%s (%s) is placed twice", p.Namespace(), p.Name, p.UID))
	}
	p.joinTexts()
	c.pods.Add(hashOfUID(p.UID), p)
	c.Unnominate(p.UID)
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

// Pod returns the placed pod with this UID, whether or not its node is known, or nil.
func (c *Cluster) Pod(uid types.UID) *Pod {
	return c.pods.Find(hashOfUID(uid), func(p *Pod) bool { return p.UID == uid })
}

// Pods returns the number of placed pods, whether or not their nodes are known.
func (c *Cluster) Pods() int { return c.pods.Len() }

// RemovePod forgets a pod, placed or nominated. A pod that is neither is ignored.
func (c *Cluster) RemovePod(uid types.UID) {
	c.Unnominate(uid)
	p := c.pods.Remove(hashOfUID(uid), func(p *Pod) bool { return p.UID == uid })
	if p == nil {
		return
	}

	// A panic within Suppose must not lose it.
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

// addStray keeps a pod whose node is not known: watches of pods and nodes are not in step.
func (c *Cluster) addStray(p *Pod) {
	if c.strays[p.NodeName] == nil {
		c.strays[p.NodeName] = map[types.UID]*Pod{}
	}
	c.strays[p.NodeName][p.UID] = p
}

// attachPod puts a placed pod on its node, and detachPod takes it off. They keep the sums and the
// log, and nothing else: the callers keep Cluster.pods.
func (c *Cluster) attachPod(p *Pod, n *Node) {
	p.setNode(n, n.Name) // the text of the name is kept once
	p.place = int32(len(n.Pods))
	n.Pods = append(n.Pods, p)
	c.countPod(n, p, 1)
	c.logChange(Change{Node: n.Index, Kind: PodAdded, Class: p.Class, Terminating: p.Terminating})
}

// detachPod moves the node's last pod into the gap, so that it costs the same with any number of
// pods.
func (c *Cluster) detachPod(p *Pod) {
	n := p.Node
	last := len(n.Pods) - 1
	n.Pods[p.place] = n.Pods[last]
	n.Pods[p.place].place = p.place
	n.Pods[last] = nil
	n.Pods = n.Pods[:last]
	p.leaveNode()
	c.countPod(n, p, -1)
	c.logChange(Change{Node: n.Index, Kind: PodRemoved, Class: p.Class, Terminating: p.Terminating})
}

// countPod adds a pod to the node's sums, or subtracts it. The pod has been added to the node's
// pods, or removed from them, before.
func (c *Cluster) countPod(n *Node, p *Pod, sign int32) {
	class, room := p.Class, &c.Rooms[n.Index]
	n.holdDevices(p, int64(sign))
	switch {
	case sign > 0:
		n.Requested.add(&class.Requests)
		room.addNonZero(class)
	// A sum has overflowed, so that what the pod added to it is not known: add up what is left.
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

// addNonZero adds what the pod counts with for scores, where nothing requested counts as a default.
func (r *Room) addNonZero(class *PodClass) {
	r.NonZeroCPU = rules.Sum(r.NonZeroCPU, class.NonZeroCPU)
	r.NonZeroMemory = rules.Sum(r.NonZeroMemory, class.NonZeroMemory)
}

// takeNonZero returns false if a sum may have overflowed; see Resources.subtractFrom.
func (r *Room) takeNonZero(class *PodClass) bool {
	if r.NonZeroCPU == math.MaxInt64 || r.NonZeroMemory == math.MaxInt64 {
		return false
	}
	r.NonZeroCPU -= class.NonZeroCPU
	r.NonZeroMemory -= class.NonZeroMemory
	return true
}

// Visit counts a copy of a pending pod on a node, as if the pod had been placed there, and returns
// that copy, which Leave removes again. The pod itself, and everything else that is known about it,
// stays as it is. It costs less than Place and RemovePod, which look after maps, and the log sees
// it all the same.
func (c *Cluster) Visit(p *Pod, n *Node) *Pod {
	guest := *p
	c.attachPod(&guest, n)
	return &guest
}

// Leave ends a visit.
func (c *Cluster) Leave(guest *Pod) { c.detachPod(guest) }
