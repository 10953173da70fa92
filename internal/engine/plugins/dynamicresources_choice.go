// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"math"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// part is a piece of hardware shared by claims: a device with consumable capacity, or the counters
// that partitions are made from. A partitioned GPU is one part; the partitions are its devices.
type part struct {
	devices map[structured.DeviceID]bool
	free    float64 // free share of the part
	wanted  float64 // share of the part wanted by the claim
}

// mostParts bounds the parts tried for one claim. Each trial is a search.
const mostParts = 16

// chosenOffer is the node's offer for the placement of the pod. The filter only checked that an
// offer exists (offerAt); here the plugin Fragmentation may choose better devices than the first
// fit.
func (a *attempt) chosenOffer(p *cluster.Pod, n *cluster.Node) offer {
	guests := a.d.guestsOn(a.c, p, n)
	o := a.offerAt(n, guests...)
	// The other devices of the node may be reserved for guests.
	if o.rejection == nil && o.results != nil && len(guests) == 0 {
		if chosen := a.chooseDevices(p, n); chosen != nil {
			o.results = chosen
		}
	}
	return o
}

// chooseDevices lets the plugin Fragmentation choose among the fitting devices of the node, for a
// pod with one open claim for devices of one kind. It returns an allocation from the best
// sufficient parts, or nil for upstream's first fit.
func (a *attempt) chooseDevices(p *cluster.Pod, n *cluster.Node) []resourcev1.AllocationResult {
	x := &a.d.index
	if a.d.chooser == nil || a.extended != nil || len(a.open) != 1 {
		return nil
	}
	request := onlyRequest(a.open[0])
	if request == nil {
		return nil
	}
	own := a.localSlices(n)
	parts := x.partsOf(own, request)
	// A single part leaves no choice.
	if len(parts) < 2 {
		return nil
	}

	// The search begins with the best part and adds the next best until the devices suffice. If one
	// device is requested, each part is tried separately, because adding a part to a better but
	// insufficient part would not help.
	order := a.d.chooser.rankParts(a.c, p, n, parts)
	among := map[structured.DeviceID]int{}
	for rank, i := range order[:min(len(order), mostParts)] {
		if request.Count <= 1 {
			clear(among) // the earlier parts do not fit
		}
		for id := range parts[i].devices {
			among[id] = rank
		}

		grounds, err := a.newGrounds(x.onlyDevices(own, among), len(among), x.taken)
		if err != nil {
			return nil
		}
		found, _ := a.searchOn(grounds, n, a.open)
		if found.results != nil {
			return found.results
		}
	}
	return nil
}

// localSlices returns the slices that name the node.
func (a *attempt) localSlices(n *cluster.Node) (own []*resourcev1.ResourceSlice) {
	x := &a.d.index
	if x.sharedPools == 0 {
		return x.slicesFor(n.Name)
	}
	for _, slice := range a.c.ResourceSlices.All() {
		if isLocal(slice) && *slice.Spec.NodeName == n.Name {
			own = append(own, slice)
		}
	}
	return own
}

// onlyRequest returns the claim's request for a number of devices of one kind, or nil if the claim
// differs: several requests, alternatives, all devices, or admin access.
func onlyRequest(claim *resourcev1.ResourceClaim) *resourcev1.ExactDeviceRequest {
	if len(claim.Spec.Devices.Requests) != 1 {
		return nil
	}
	r := claim.Spec.Devices.Requests[0].Exactly
	if r == nil || r.AllocationMode != resourcev1.DeviceAllocationModeExactCount || r.AdminAccess != nil && *r.AdminAccess {
		return nil
	}
	return r
}

// onlyDevices returns the slices reduced to these devices, in the order of their ranks, and to the
// taken devices: taken devices use counters, which the allocator would otherwise consider free. The
// slices are copies.
func (x *deviceIndex) onlyDevices(
	own []*resourcev1.ResourceSlice, ranks map[structured.DeviceID]int,
) (list []*resourcev1.ResourceSlice) {
	for _, slice := range own {
		only := *slice
		only.Spec.Devices = nil
		for i := range slice.Spec.Devices {
			id := deviceOf(slice, i)
			if _, ranked := ranks[id]; ranked || x.taken.AllocatedDevices.Has(id) {
				only.Spec.Devices = append(only.Spec.Devices, slice.Spec.Devices[i])
			}
		}

		rankOf := func(d *resourcev1.Device) int {
			return ranks[structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)]
		}
		slices.SortStableFunc(only.Spec.Devices, func(a, b resourcev1.Device) int { return cmp.Compare(rankOf(&a), rankOf(&b)) })
		list = append(list, &only)
	}
	return list
}

// deviceOf is the ID of the i-th device of a slice.
func deviceOf(slice *resourcev1.ResourceSlice, i int) structured.DeviceID {
	return structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, slice.Spec.Devices[i].Name)
}

// partsOf lists the shareable parts of the node's devices, in the order of the slices. It omits
// devices allocated as a whole, which are interchangeable for a pod.
func (x *deviceIndex) partsOf(own []*resourcev1.ResourceSlice, request *resourcev1.ExactDeviceRequest) (parts []part) {
	counters := x.countersOf(own)
	at := map[counterSet]int{}

	for _, slice := range own {
		for i := range slice.Spec.Devices {
			device, id := &slice.Spec.Devices[i], deviceOf(slice, i)
			switch {
			case device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations:
				if p, ok := x.shareOf(device, id, request); ok {
					parts = append(parts, p)
				}

			// Partitions of one set of counters form one part, because they share the set's free
			// amounts.
			case len(device.ConsumesCounters) == 1 && !x.taken.AllocatedDevices.Has(id):
				set := counterSet{poolOf(slice), device.ConsumesCounters[0].CounterSet}
				free := counters[set]
				if free == nil {
					continue
				}
				if _, known := at[set]; !known {
					at[set] = len(parts)
					parts = append(parts, part{devices: map[structured.DeviceID]bool{}, free: free.least(), wanted: 1})
				}

				p := &parts[at[set]]
				p.devices[id] = true
				p.wanted = min(p.wanted, free.shareOf(device.ConsumesCounters[0].Counters))
			}
		}
	}
	return parts
}

// shareOf is the part for a device with consumable capacity; the scarcest of the requested
// capacities counts. ok is false if the request names no capacities, or the device lacks one of
// them. With 40 of 80 Gi and 2 of 8 engines free, a request for 20 Gi and 1 engine yields free =
// 0.25 and wanted = 0.25.
func (x *deviceIndex) shareOf(device *resourcev1.Device, id structured.DeviceID, request *resourcev1.ExactDeviceRequest) (p part, ok bool) {
	if request.Capacity == nil || len(request.Capacity.Requests) == 0 {
		return p, false
	}
	p = part{devices: map[structured.DeviceID]bool{id: true}, free: 1}
	for name, wanted := range request.Capacity.Requests {
		capacity, has := device.Capacity[name]
		all := capacity.Value.AsApproximateFloat64()
		if !has || all <= 0 {
			return p, false
		}
		free := all
		if consumed := x.taken.AggregatedCapacity[id]; consumed != nil && consumed[name] != nil {
			free -= consumed[name].AsApproximateFloat64()
		}
		p.free, p.wanted = min(p.free, free/all), max(p.wanted, wanted.AsApproximateFloat64()/all)
	}
	return p, true
}

// counterSet names the counters of a pool that partitions are made from.
type counterSet struct {
	pool poolID
	name string
}

// counted holds the total and free amounts of a counter set.
type counted struct{ all, free map[string]float64 }

// least is the free share of the scarcest counter. Without counters it is 1.
func (c *counted) least() float64 {
	share := 1.0
	for name, all := range c.all {
		if all > 0 {
			share = min(share, c.free[name]/all)
		}
	}
	return share
}

// shareOf is the largest share of a counter taken by a partition, for example 0.5 for 20 of 40 Gi
// and 2 of 8 engines.
func (c *counted) shareOf(wanted map[string]resourcev1.Counter) (share float64) {
	for name, w := range wanted {
		if all := c.all[name]; all > 0 {
			share = max(share, w.Value.AsApproximateFloat64()/all)
		}
	}
	return share
}

// countersOf sums up the counters of the node's pools and subtracts the amounts taken by allocated
// partitions. Slices of counters and slices of their devices may occur in any order, so it reads
// the counters first.
func (x *deviceIndex) countersOf(own []*resourcev1.ResourceSlice) map[counterSet]*counted {
	sets := map[counterSet]*counted{}
	for _, slice := range own {
		for i := range slice.Spec.SharedCounters {
			c := &counted{map[string]float64{}, map[string]float64{}}
			for name, counter := range slice.Spec.SharedCounters[i].Counters {
				c.all[name] = counter.Value.AsApproximateFloat64()
				c.free[name] = c.all[name]
			}
			sets[counterSet{poolOf(slice), slice.Spec.SharedCounters[i].Name}] = c
		}
	}

	for _, slice := range own {
		for i := range slice.Spec.Devices {
			// Only allocated partitions consume counters.
			if !x.taken.AllocatedDevices.Has(deviceOf(slice, i)) {
				continue
			}
			for _, use := range slice.Spec.Devices[i].ConsumesCounters {
				if c := sets[counterSet{poolOf(slice), use.CounterSet}]; c != nil {
					for name, counter := range use.Counters {
						c.free[name] -= counter.Value.AsApproximateFloat64()
					}
				}
			}
		}
	}
	return sets
}

// rankParts orders the parts with enough free capacity by the reduction of the node's worth if the
// pod takes them. It values the parts as the node's devices, instead of the devices of the extended
// resource. The result holds indices into parts; among parts of equal cost the tightest is first.
func (f *Fragmentation) rankParts(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node, parts []part) (order []int) {
	whole := float64(f.devices.Whole())
	room := fragmentation.Room{
		CPU: n.Size.MilliCPU - n.Requested.MilliCPU, Memory: n.Size.Memory - n.Requested.Memory, WholeCPU: n.Size.MilliCPU,
	}
	task := f.taskOf(p)
	amounts := make([]int64, len(parts))
	for i := range parts {
		room.Devices = append(room.Devices, max(0, int64(parts[i].free*whole+rounding)))
		amounts[i] = int64(math.Ceil(parts[i].wanted*whole - rounding))
		if parts[i].free+rounding >= parts[i].wanted {
			order = append(order, i)
		}
	}

	o := f.coming.currentFuture(f, c).outlookOf(n)
	costs := make([]int64, len(parts))
	for _, i := range order {
		if f.devices.Whole() == 1 { // the plugin distinguishes only whole devices, so the tightest part is the best
			break
		}
		task.Amount = amounts[i]
		costs[i] = o.CostOn(&room, &task, i)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(costs[a], costs[b]), cmp.Compare(parts[a].free, parts[b].free))
	})
	return order
}

// deviceChoice lets the profile's plugin Fragmentation choose devices (if it is at Reserve), and
// score nodes by the devices of its DRA driver (if one is configured). It must be called before the
// plugins are assembled.
func (p *Profile) deviceChoice() {
	f := fragmentationIn(p)
	d, ok := p.made["DynamicResources"].(*DynamicResources)
	if !ok || f == nil {
		return
	}
	if p.Has(Reserve, f.Name()) {
		d.chooser = f
	}
	if f.driver != "" {
		f.claims = &driverDevices{DynamicResources: d, driver: f.driver}
	}
}
