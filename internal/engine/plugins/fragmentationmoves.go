// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// Loss is the free capacity of a node, in thousandths of a device, that future pods cannot use with
// the given pods on it: the weighted mean of the capacity unusable by the next pod and the capacity
// expected to be left over in the end, plus the CPU and devices that strand each other. Only the
// given pods count, not the node's current pods. The given pods are packed even if their devices
// are known, because a plan compares nodes before and after devices are assigned, and placed pods
// with existing pods.
func (f *Fragmentation) Loss(c *cluster.Cluster, n *cluster.Node, pods []*cluster.Pod) int64 {
	room := fragmentation.Room{CPU: n.Size.MilliCPU, Memory: n.Size.Memory, WholeCPU: n.Size.MilliCPU}
	for range min(n.Size.Scalars[f.resource]/f.devices.Unit, maxDevices) {
		room.Devices = append(room.Devices, f.devices.Unit)
	}
	var amounts []int64
	for _, p := range pods {
		r := &p.Class.Requests
		room.CPU -= r.MilliCPU
		room.Memory -= r.Memory
		amounts = append(amounts, r.Scalars[f.resource])
	}
	f.packAmounts(amounts, room.Devices)
	for i, free := range room.Devices {
		room.Devices[i] = f.devices.Free(free)
	}
	return f.coming.currentFuture(f, c).outlookOf(n).Loss(&room)
}

// Worth is the value of a node's free capacity to future pods; see package fragmentation for the
// unit. Only differences are meaningful.
func (f *Fragmentation) Worth(c *cluster.Cluster, n *cluster.Node) int64 {
	d := f.scratches.Get().(*scratch)
	defer f.scratches.Put(d)
	d.readNode(f, n)
	return f.coming.currentFuture(f, c).outlookOf(n).Worth(&d.room)
}

// Exchange returns the rise of a node's worth if the pod arriving replaces the pod departing;
// either may be nil. ok is false if the new pod does not fit after the departure of the old pod.
// Exchange modifies nothing: a plan evaluates many pairs, and carries out few.
func (f *Fragmentation) Exchange(c *cluster.Cluster, n *cluster.Node, departing, arriving *cluster.Pod) (rise int64, ok bool) {
	d := f.scratches.Get().(*scratch)
	defer f.scratches.Put(d)
	d.readNode(f, n)
	o := f.coming.currentFuture(f, c).outlookOf(n)
	before := o.Worth(&d.room)

	// The pod leaves only the copy in the scratch space, not the node.
	f.returnRoom(n, departing, &d.room)
	if arriving == nil {
		return o.Worth(&d.room) - before, true
	}
	task := f.taskOf(arriving)
	if task.CPU > d.room.CPU || task.Memory > d.room.Memory || !fragmentation.Fits(d.room.Devices, task.Amount, f.devices.Whole()) {
		return 0, false
	}
	// The pod's device does not matter here: Reserve chooses it later.
	cost, _ := o.Cost(&d.room, &task)
	return o.Worth(&d.room) - cost - before, true
}

// returnRoom adds the amounts taken by a pod of the node to room. If the pod's devices are unknown,
// returnRoom assumes the fullest possible devices, like packPods.
func (f *Fragmentation) returnRoom(n *cluster.Node, p *cluster.Pod, room *fragmentation.Room) {
	task, whole := f.taskOf(p), f.devices.Whole()
	room.CPU += task.CPU
	room.Memory += task.Memory

	if p.Devices != nil {
		for _, s := range *p.Devices {
			if int(s.Device) < len(room.Devices) {
				room.Devices[s.Device] = min(whole, room.Devices[s.Device]+f.devices.Steps(s.Amount))
			}
		}
		return
	}

	// Return a request for several devices device by device.
	for rest := task.Amount; rest > 0; {
		part, at := min(rest, whole), -1
		for i, free := range room.Devices {
			if whole-free >= part && (at < 0 || free < room.Devices[at]) {
				at = i
			}
		}
		if at < 0 {
			at = slices.Index(room.Devices, slices.Min(room.Devices))
		}
		room.Devices[at] = min(whole, room.Devices[at]+part)
		rest -= part
	}
}
