// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/fragmentation"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// CodeNoDeviceFits is the code of Fragmentation.
const CodeNoDeviceFits = "NoDeviceFits"

// Fragmentation scores nodes by the part of their remaining free capacity that future pods can use;
// see package fragmentation. It is off by default, and has no counterpart in upstream.
//
// The amount of a node's extended resource is the sum over its devices, but a request for a share
// of a device must fit on a single device. The plugin chooses the pod's device (Reserve), and
// rejects nodes with a sufficient sum but no sufficient device. The devices of pods not placed by
// this process are unknown; these pods are assumed to be packed as tightly as possible. With a unit
// of 100:
//
//	two devices of 100 with 60 taken on each: the resource has 80 free
//	a pod requesting 50 is rejected (NodeResourcesFit would let it pass)
//	a pod requesting 40 gets the first device and fills it
type Fragmentation struct {
	// resource is the extended resource that counts the devices, and devices holds its amount per
	// device.
	resource v1.ResourceName
	devices  fragmentation.Devices
	driver   string // driver of devices held by claims; empty: such devices do not affect scores
	claims   *driverDevices
	// coming is the expected workload. All calls of the plugin share the workload, which has a
	// separate lock.
	coming    *coming
	scratches sync.Pool // of *scratch
}

// NewFragmentation returns the plugin; nil args select the defaults.
func NewFragmentation(args *FragmentationArgs) (*Fragmentation, error) {
	args = cmp.Or(args, &FragmentationArgs{}).DeepCopy()
	SetArgsDefaults(args)
	if err := ValidateArgs(nil, args); err != nil {
		return nil, err
	}
	f := &Fragmentation{resource: args.Resource, driver: args.Driver, devices: fragmentation.Devices{Unit: args.Unit}}
	f.coming = newComing(args, f.devices)
	f.scratches.New = func() any { return &scratch{} }
	return f, nil
}

// Name implements Filter and Scorer.
func (*Fragmentation) Name() string { return "Fragmentation" }

// Reads implements Filter.
func (*Fragmentation) Reads() Part { return Contents }

// Steady implements Steady.
func (*Fragmentation) Steady() {}

// scratch is scratch space for examining one node. Nodes are scored concurrently, and each
// goroutine uses a separate scratch.
type scratch struct{ room fragmentation.Room }

// readNode reads the free amounts of a node in the units of package fragmentation: devices in
// steps. It overwrites the scratch space.
func (d *scratch) readNode(f *Fragmentation, n *cluster.Node) {
	d.room.CPU = n.Size.MilliCPU - n.Requested.MilliCPU
	d.room.Memory = n.Size.Memory - n.Requested.Memory
	d.room.WholeCPU = n.Size.MilliCPU
	f.readDevices(n, &d.room.Devices)
	for i, free := range d.room.Devices {
		d.room.Devices[i] = f.devices.Free(free)
	}
}

// readDevices reads the free amount of each device of a node, in units of the resource, into the
// slice, which it may replace. Assigned devices (Node.Held) are exact; the remaining requests are
// packed.
func (f *Fragmentation) readDevices(n *cluster.Node, into *[]int64) {
	free := (*into)[:0]
	rest := n.Requested.Scalars[f.resource]
	for i := range min(n.Size.Scalars[f.resource]/f.devices.Unit, maxDevices) {
		left := f.devices.Unit
		if int(i) < len(n.Held) {
			left -= n.Held[i]
			rest -= n.Held[i]
		}
		free = append(free, left)
	}
	if rest > 0 {
		f.packPods(n.Pods, free)
	}
	*into = free
}

// packPods subtracts the requests of the pods without known devices from free, the free amounts of
// the devices.
func (f *Fragmentation) packPods(pods []*cluster.Pod, free []int64) {
	var amounts []int64
	for _, p := range pods {
		if amount := p.Class.Requests.Scalars[f.resource]; amount > 0 && p.Devices == nil {
			amounts = append(amounts, amount)
		}
	}
	f.packAmounts(amounts, free)
}

// packAmounts subtracts requested amounts from the devices, the largest first, packed as tightly as
// possible, which is the most optimistic guess. It sorts the amounts and modifies free.
func (f *Fragmentation) packAmounts(amounts, free []int64) {
	slices.Sort(amounts)
	for _, rest := range slices.Backward(amounts) {
		for rest > 0 {
			at := f.tightestDevice(free, min(rest, f.devices.Unit))
			if at < 0 {
				return
			}
			taken := min(rest, free[at])
			free[at] -= taken
			rest -= taken
		}
	}
}

// maxDevices bounds the examined devices of a node. A resource with a wrong unit could have
// billions.
const maxDevices = 1 << 10

// tightestDevice returns the device that presumably holds an amount: the fullest device with enough
// free capacity, or else the emptiest device; -1 if all are full.
func (f *Fragmentation) tightestDevice(free []int64, amount int64) int {
	best := -1
	for i, left := range free {
		switch {
		case left <= 0:
		case best < 0, free[best] < amount && left > free[best], left >= amount && left < free[best]:
			best = i
		}
	}
	return best
}

// taskOf returns the amounts the plugin counts for a pod. These exclude its claims; see
// claimedTask.
func (f *Fragmentation) taskOf(p *cluster.Pod) fragmentation.Task {
	r := &p.Class.Requests
	return fragmentation.Task{CPU: r.MilliCPU, Memory: r.Memory, Amount: f.devices.Steps(r.Scalars[f.resource])}
}

// Filter implements Filter. It passes pods without the resource. Preemption cannot help if the pod
// requests more devices than the node has, free or allocated.
func (f *Fragmentation) Filter(_ *cluster.Cluster, p *cluster.Pod) Judge {
	amount := f.taskOf(p).Amount
	if amount == 0 {
		return Judge{}
	}

	reason := "node(s) didn't have a device with enough free " + string(f.resource)
	if amount > f.devices.Whole() {
		reason = "node(s) didn't have enough whole devices of " + string(f.resource)
	}

	full := &Rejection{Code: CodeNoDeviceFits, Reasons: []string{reason}}
	never := &Rejection{Code: CodeNoDeviceFits, Reasons: []string{reason}, Unresolvable: true}
	return Judge{Node: func(n *cluster.Node) *Rejection {
		d := f.scratches.Get().(*scratch)
		defer f.scratches.Put(d)
		switch d.readNode(f, n); {
		case fragmentation.Fits(d.room.Devices, amount, f.devices.Whole()):
			return nil
		case int64(len(d.room.Devices))*f.devices.Whole() < amount:
			return never
		}
		return full
	}}
}

// ScoreByRoom implements [RoomScorer]: the score depends on more than the room.
func (*Fragmentation) ScoreByRoom(*cluster.Cluster, *cluster.Pod) RoomScore { return RoomScore{} }

// Version implements [Learner]. It returns the version of the expected workload used by Score.
func (f *Fragmentation) Version(c *cluster.Cluster) uint64 {
	return f.coming.currentFuture(f, c).number
}

// Score implements Scorer. A lower cost gives a higher score, and the exact cost breaks ties. Nodes
// without a fitting device score lowest, since the plugin may be enabled only at Score.
func (f *Fragmentation) Score(c *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	if f.ScoresByObjects() {
		return f.scoreByClaims(c, p)
	}

	future, task := f.coming.currentFuture(f, c), f.taskOf(p)
	exact := func(n *cluster.Node) (score, fine int64) {
		d := f.scratches.Get().(*scratch)
		defer f.scratches.Put(d)
		d.readNode(f, n)
		o := future.outlookOf(n)
		if !fragmentation.Fits(d.room.Devices, task.Amount, f.devices.Whole()) { // the filter is not enabled
			return 0, -fragmentation.Worst
		}
		cost, _ := o.Cost(&d.room, &task)
		return o.Score(cost, &task, MaxScore), -cost
	}
	return Scoring{Exact: exact, Node: func(n *cluster.Node) (int64, error) {
		score, _ := exact(n)
		return score, nil
	}}
}

// Learn implements [Learner] by counting the pod.
func (f *Fragmentation) Learn(c *cluster.Cluster, p *cluster.Pod) { f.coming.podPlaced(f, c, p) }

// Reserve implements Reserver. It assigns devices to the pod, and learns nothing from that: see
// [Learner].
func (f *Fragmentation) Reserve(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (undo func(), err error) {
	f.coming.begin(f, c)
	amount := p.Class.Requests.Scalars[f.resource]
	if amount <= 0 {
		return func() {}, nil
	}
	shares := f.chooseDevices(c, p, n, amount)
	if shares == nil {
		return nil, fmt.Errorf("node %s has no device with enough free %s", n.Name, f.resource)
	}
	p.SetDevices(&shares)
	return func() { p.SetDevices(nil) }, nil
}

// chooseDevices returns the best devices for a pod, or nil if the pod does not fit. A share goes to
// the device with the lowest cost; whole devices are interchangeable, so the first free ones are
// taken.
func (f *Fragmentation) chooseDevices(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node, amount int64) (shares cluster.DeviceShares) {
	d, task := &scratch{}, f.taskOf(p)
	d.readNode(f, n)
	if !fragmentation.Fits(d.room.Devices, task.Amount, f.devices.Whole()) {
		return nil
	}
	_, device := f.coming.currentFuture(f, c).outlookOf(n).Cost(&d.room, &task)
	if device != fragmentation.NoDevice {
		return cluster.DeviceShares{{Device: int32(device), Amount: amount}}
	}
	for i, free := range d.room.Devices {
		if amount > 0 && free == f.devices.Whole() {
			shares = append(shares, cluster.DeviceShare{Device: int32(i), Amount: min(amount, f.devices.Unit)})
			amount -= f.devices.Unit
		}
	}
	return shares
}

// Interests implements Requeuer. The departure of a pod helps if the pod had devices; other plugins
// cover the events of pods with claims.
func (f *Fragmentation) Interests(Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeAllocatable},
		{Resource: queue.Pod, Action: queue.Delete | queue.UpdatePodScaleDown, Hint: func(item *queue.Item, e *queue.Event) bool {
			return !isOthers(e) || e.PodBefore != nil && e.PodBefore.Class.Requests.Scalars[f.resource] > 0
		}},
	}
}

// Wakes implements Waker.
func (*Fragmentation) Wakes() []string {
	return []string{"a node is added or gets more devices", "a pod with devices leaves its node"}
}

// Fixes implements Fixer.
func (*Fragmentation) Fixes() []Fix { return []Fix{AskForLess, MakeRoom} }

// Detail implements Detailer. It lists the free amount of each device, in units of the resource.
func (f *Fragmentation) Detail(*cluster.Cluster, *cluster.Pod) func(*cluster.Node) string {
	return func(n *cluster.Node) string {
		var free []int64
		f.readDevices(n, &free)
		return fmt.Sprintf("free by device, of %d: %v", f.devices.Unit, free)
	}
}

// ScoreDetail implements [ScoreDetailer]. It lists the loss in each term of the node's worth (see
// package fragmentation), and describes the expected workload.
func (f *Fragmentation) ScoreDetail(c *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	future, task, whole := f.coming.currentFuture(f, c), f.taskOf(p), f.devices.Whole()
	// The description is the same for all nodes.
	comes := future.describe(f.IsGiven())
	place := func(d *scratch, n *cluster.Node) (before, after *fragmentation.Room, device int) {
		d.readNode(f, n)
		if !fragmentation.Fits(d.room.Devices, task.Amount, whole) {
			return nil, nil, noDeviceFits
		}
		_, device = future.outlookOf(n).Cost(&d.room, &task)
		return &d.room, d.room.After(&task, device, whole), device
	}
	if f.ScoresByObjects() {
		place = func(d *scratch, n *cluster.Node) (before, after *fragmentation.Room, device int) {
			return f.placeClaims(f.claims.attemptFor(c, p), future, d, p, n)
		}
	}

	return func(n *cluster.Node) string {
		roomBefore, roomAfter, device := place(&scratch{}, n)
		if device == noDeviceFits {
			return "no device fits"
		}

		o := future.outlookOf(n)
		before, after := o.Terms(roomBefore), o.Terms(roomAfter)
		near, far, imbalance := before.Near-after.Near, after.Far-before.Far, after.Imbalance-before.Imbalance
		words := fmt.Sprintf("in devices, takes %s of the %s that the next pod can use on average, adds %s to what is "+
			"expected to be left over in the end",
			f.devices.Words(near), f.devices.Words(before.Near), f.devices.Words(far))
		if words += fmt.Sprintf(", and %s to what CPU and devices strand of each other",
			f.devices.Words(imbalance)); device != fragmentation.NoDevice {
			words += fmt.Sprintf("; on device %d", device)
		}

		return words + comes
	}
}

// amountOf returns a quantity in the engine's units: CPU in thousandths, everything else in units.
// It returns 0 if the list lacks the resource.
func amountOf(list v1.ResourceList, name v1.ResourceName) int64 {
	quantity, ok := list[name]
	if !ok {
		return 0
	}
	return rules.Amount(name, quantity)
}
