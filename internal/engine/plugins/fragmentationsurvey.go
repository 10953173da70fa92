// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// DeviceRoom is the free part of the devices of one or several nodes, in thousandths of a device.
type DeviceRoom struct {
	Size, Free int64
	// Usable is the part usable by the next pod with devices, averaged over the expected workload.
	Usable int64
	// Left is the part expected to be left over in the end, when no more pods fit.
	Left int64
}

// Resource returns the plugin's extended resource and the amount of it per device.
func (f *Fragmentation) Resource() (name v1.ResourceName, unit int64) {
	return f.resource, f.devices.Unit
}

// DeviceValuer values free devices by their use to future pods, for reports and plans. The plugin
// Fragmentation implements it.
type DeviceValuer interface {
	Resource() (name v1.ResourceName, unit int64)
	IsGiven() bool
	LearnPod(p *cluster.Pod)
	WhatComes(c *cluster.Cluster) []Coming
	ComingOf(p *cluster.Pod) Coming
	RoomOf(c *cluster.Cluster, n *cluster.Node) DeviceRoom
	RoomByPool(c *cluster.Cluster) map[string]DeviceRoom
	Fitting(n *cluster.Node, kind *Coming) int64
	Loss(c *cluster.Cluster, n *cluster.Node, pods []*cluster.Pod) int64
	Exchange(c *cluster.Cluster, n *cluster.Node, leaves, comes *cluster.Pod) (rise int64, ok bool)
}

// NewDeviceValuer returns a DeviceValuer with the arguments of the plugin.
func NewDeviceValuer(args *FragmentationArgs) (DeviceValuer, error) { return NewFragmentation(args) }

// DeviceValuer returns the profile's DeviceValuer, or nil.
func (p *Profile) DeviceValuer() DeviceValuer {
	if f := fragmentationIn(p); f != nil {
		return f
	}
	return nil
}

// fragmentationIn returns the plugin Fragmentation of a profile, or nil if the profile does not
// enable it.
func fragmentationIn(p *Profile) *Fragmentation {
	f, _ := p.made["Fragmentation"].(*Fragmentation)
	return f
}

// IsGiven reports whether the arguments define the expected workload. Otherwise it is learnt.
func (f *Fragmentation) IsGiven() bool { return f.coming.given }

// LearnPod counts a pending pod, for plans that include pending pods. It must be called before the
// expected workload is first used, and does nothing if the workload is given.
func (f *Fragmentation) LearnPod(p *cluster.Pod) {
	f.coming.mutex.Lock()
	defer f.coming.mutex.Unlock()
	if !f.coming.given {
		f.coming.countPod(f.taskOf(p), p)
	}
}

// RoomOf measures the devices of a node. Without devices all fields are 0.
func (f *Fragmentation) RoomOf(c *cluster.Cluster, n *cluster.Node) DeviceRoom {
	d := f.scratches.Get().(*scratch)
	defer f.scratches.Put(d)
	d.readNode(f, n)
	future, whole := f.coming.currentFuture(f, c), f.devices.Whole()
	terms := future.outlookOf(n).Terms(&d.room)
	room := DeviceRoom{
		// The near term is a sum over all tasks with devices, multiplied by their weights; dividing
		// by the weights makes it a mean.
		Size: int64(len(d.room.Devices)) * 1000, Usable: terms.Near / max(1, future.wanted()*whole/1000),
		Left: fragmentation.Thousandths(terms.Far, whole),
	}
	for _, free := range d.room.Devices {
		room.Free += free * 1000 / whole
	}
	// Rounding could raise the mean above the free amount.
	room.Usable = min(room.Usable, room.Free)
	return room
}

// mostPools bounds the pools distinguished by RoomByPool: each pool is a label value of metrics.
// otherPools is the name of all other pools.
const (
	mostPools  = 64
	otherPools = "other"
)

// RoomByPool measures the devices of all nodes, by the pools of the nodes. It never learns: it
// returns nil before the first decision, and while lessons have yet to take effect.
func (f *Fragmentation) RoomByPool(c *cluster.Cluster) map[string]DeviceRoom {
	f.coming.mutex.Lock()
	// Reading a metric must not make the plugin learn: decisions would depend on the time of the
	// read.
	known := f.coming.current != nil
	f.coming.mutex.Unlock()
	if !known {
		return nil
	}

	pools := map[string]DeviceRoom{}
	for _, n := range c.SortedNodes() {
		room := f.RoomOf(c, n)
		if room.Size == 0 {
			continue
		}
		name := PoolOf(n)
		// Nodes are sorted by name, so that the distinguished pools are always the same.
		if _, known := pools[name]; !known && len(pools) >= mostPools {
			name = otherPools
		}
		sum := pools[name]
		sum.Size += room.Size
		sum.Free += room.Free
		sum.Usable += room.Usable
		sum.Left += room.Left
		pools[name] = sum
	}
	return pools
}

// poolLabels are the labels used by tools and providers to name pools of nodes. The first label
// present on a node counts.
var poolLabels = []string{"karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup",
	"kubernetes.azure.com/agentpool", "node.kubernetes.io/pool"}

// PoolOf is the name of a node's pool, or "" without such a label.
func PoolOf(n *cluster.Node) string {
	for _, label := range poolLabels {
		if name, ok := n.Lookup(label); ok && name != "" {
			return name
		}
	}
	return ""
}

// wanted is the weight of the pods with devices.
func (u *future) wanted() (sum int64) {
	for i := range u.shapes {
		if u.shapes[i].task.Amount > 0 {
			sum += u.shapes[i].task.Weight
		}
	}
	return sum
}

// Coming is a kind of expected pods in the form of an argument, and its share (0..1) of all
// expected pods, with or without devices.
type Coming struct {
	FragmentationTask
	Share   float64
	shape   comingShape
	devices int64
}

// WhatComes lists the kinds of expected pods, the most frequent first. The first use of the plugin
// learns from the running pods.
func (f *Fragmentation) WhatComes(c *cluster.Cluster) (list []Coming) {
	future := f.coming.currentFuture(f, c)
	var all int64
	for i := range future.shapes {
		all += future.shapes[i].task.Weight
	}
	for i := range future.shapes {
		s := &future.shapes[i]
		share := float64(s.task.Weight) / float64(max(all, 1))
		list = append(list, Coming{f.argumentOf(s), share, *s, s.task.Amount * 1000 / f.devices.Whole()})
	}
	return list
}

// argumentOf returns a kind of pods in the form of an argument, which allows importing learnt pods
// as a given workload.
func (f *Fragmentation) argumentOf(s *comingShape) FragmentationTask {
	t := FragmentationTask{Weight: max(1, s.task.Weight), Requests: v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(s.task.CPU, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(s.task.Memory, resource.BinarySI),
	}}
	if s.task.Amount > 0 {
		t.Requests[f.resource] = *resource.NewQuantity(s.task.Amount*f.devices.Unit/f.devices.Whole(), resource.DecimalSI)
	}
	if s.where != nil {
		t.NodeSelector, t.NodeAffinity = s.where.labels, s.where.required
	}
	return t
}

// ComingOf returns the kind of a pod, with share 0, whether or not such pods are expected.
func (f *Fragmentation) ComingOf(p *cluster.Pod) Coming {
	required, _ := podNodeAffinity(p.Spec())
	where, _ := chooseNodes(p.Spec().NodeSelector, required)
	s := comingShape{task: f.taskOf(p), where: where}
	return Coming{f.argumentOf(&s), 0, s, s.task.Amount * 1000 / f.devices.Whole()}
}

// Fitting counts the pods of the kind that would fit on the node without any other pods arriving,
// by devices, CPU, memory and pod slots. It returns 0 for a kind without devices or not eligible
// for the node.
func (f *Fragmentation) Fitting(n *cluster.Node, kind *Coming) int64 {
	t, whole := &kind.shape.task, f.devices.Whole()
	if t.Amount == 0 || !kind.shape.where.match(n) {
		return 0
	}

	d := f.scratches.Get().(*scratch)
	defer f.scratches.Put(d)
	d.readNode(f, n)

	var count, devices int64
	for _, free := range d.room.Devices {
		switch {
		case t.Amount < whole:
			count += free / t.Amount
		case free == whole:
			devices++
		}
	}
	if t.Amount >= whole {
		count = devices * whole / t.Amount
	}

	// A resource not requested by the task does not limit the count, even if it is overcommitted.
	if t.CPU > 0 {
		count = min(count, max(0, d.room.CPU)/t.CPU)
	}
	if t.Memory > 0 {
		count = min(count, max(0, d.room.Memory)/t.Memory)
	}
	return min(count, max(0, n.Size.Pods-int64(len(n.Pods))))
}

// Devices is the number of devices requested by a pod of the kind, in thousandths.
func (k *Coming) Devices() int64 { return k.devices }
