package plugins

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// Loss is, in thousandths of a device, how much of the free capacity of a node the pods that come
// cannot use if these pods are on it: the weighted mean of what the next one cannot, and of what is
// expected to be left over in the end, and what CPU and devices strand of each other. The node's
// own pods do not count: the caller says which would be there. They are packed, also those whose
// devices are known: a plan compares nodes before and after it gives a pod devices, and pods
// that it has placed with pods that were there before.
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

// Worth is what the free capacity of a node is worth to the pods that come; see package
// fragmentation for the unit. Only differences mean anything.
func (f *Fragmentation) Worth(c *cluster.Cluster, n *cluster.Node) int64 {
	d := f.desks.Get().(*desk)
	defer f.desks.Put(d)
	d.readNode(f, n)
	return f.coming.currentFuture(f, c).outlookOf(n).Worth(&d.room)
}

// Exchange is by how much the worth of a node rises if one of its pods leaves and another one comes
// in its place; nil is none. ok is false if the one that comes does not fit then. Nothing is
// changed: a plan asks for many pairs, and carries out few.
func (f *Fragmentation) Exchange(c *cluster.Cluster, n *cluster.Node, leaves, comes *cluster.Pod) (rise int64, ok bool) {
	d := f.desks.Get().(*desk)
	defer f.desks.Put(d)
	d.readNode(f, n)
	o := f.coming.currentFuture(f, c).outlookOf(n)
	before := o.Worth(&d.room)

	// The desk's copy: the node keeps its pod.
	f.returnRoom(n, leaves, &d.room)
	if comes == nil {
		return o.Worth(&d.room) - before, true
	}
	task := f.taskOf(comes)
	if task.CPU > d.room.CPU || task.Memory > d.room.Memory || !fragmentation.Fits(d.room.Devices, task.Amount, f.devices.Whole()) {
		return 0, false
	}
	// The device that the pod would get does not matter: Reserve chooses it when the pod comes.
	cost, _ := o.Cost(&d.room, &task)
	return o.Worth(&d.room) - cost - before, true
}

// returnRoom gives back what a pod of the node has. Where nobody knows its devices, it is the
// fullest that it can be on: packPods assumes the same.
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

	// A request for several devices is given back device by device.
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
