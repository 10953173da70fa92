// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fragmentation

import "slices"

// NoDevice is the device of a task that requests no share of a device, but whole devices or none.
const NoDevice = -1

// Fits reports whether the devices can take a task: one has the share free, or enough of them are
// free as a whole. amount and the free amounts are in steps; whole is a device. A task without a
// device request fits everywhere.
func Fits(devices []int64, amount, whole int64) bool {
	if amount >= whole {
		for _, free := range devices {
			if free == whole {
				amount -= whole
			}
		}
		return amount <= 0
	}
	for _, free := range devices {
		if free >= amount {
			return true
		}
	}
	return amount == 0
}

// Cost returns the reduction of a node's worth by a task, for a node with room for it, and the best
// device for a share; NoDevice for whole devices, since any will do. The cost may be negative: a
// task that fills a remainder can improve the balance of a node. The room is not changed.
func (o *Outlook) Cost(r *Room, t *Task) (cost int64, device int) {
	cpu := r.CPU - t.CPU
	v := o.viewOf(cpu, r.Memory-t.Memory)
	var whole, sum, worth int64
	for _, free := range r.Devices {
		sum += free
		worth += v.deviceWorth(free)
		if free == o.whole {
			whole++
		}
	}

	worth -= o.imbalanceOf(r, cpu, sum-t.Amount)
	before := o.Worth(r)
	switch {
	case t.Amount == 0:
		return before - worth - v.wholeWorth(whole), NoDevice
	case t.Amount >= o.whole:
		n := t.Amount / o.whole
		worth += n*(v.deviceWorth(0)-v.deviceWorth(o.whole)) + v.wholeWorth(whole-n)
		return before - worth, NoDevice
	}

	change, device := v.bestDevice(r.Devices, t.Amount, whole)
	return before - worth - change, device
}

// CostOn is Cost for a share on this device, which must have it free.
func (o *Outlook) CostOn(r *Room, t *Task, device int) int64 {
	after := Room{r.CPU - t.CPU, r.Memory - t.Memory, r.WholeCPU, slices.Clone(r.Devices)}
	after.Devices[device] = max(0, after.Devices[device]-t.Amount)
	return o.Worth(r) - o.Worth(&after)
}

// After returns the room after placing the task. A share is placed on the given device.
func (r *Room) After(t *Task, device int, whole int64) *Room {
	after := &Room{r.CPU - t.CPU, r.Memory - t.Memory, r.WholeCPU, slices.Clone(r.Devices)}
	if device != NoDevice {
		after.Devices[device] -= t.Amount
		return after
	}
	for i, amount := 0, t.Amount; amount > 0; i++ {
		if after.Devices[i] == whole {
			after.Devices[i] = 0
			amount -= whole
		}
	}
	return after
}

// bestDevice returns the best device for a share, the first among equals, and the resulting change
// in worth of this device and of the whole devices together. Placing a share on an entirely free
// device loses the worth that the device has for tasks that want whole devices.
func (v view) bestDevice(devices []int64, amount, whole int64) (change int64, device int) {
	device = NoDevice
	for i, free := range devices {
		if free < amount {
			continue
		}
		left := whole
		if free == v.o.whole {
			left--
		}
		c := v.deviceWorth(free-amount) - v.deviceWorth(free) + v.wholeWorth(left)
		if device == NoDevice || c > change {
			change, device = c, i
		}
	}
	return change, device
}

// Score maps a cost to 0..highest: half of highest for a cost of zero, less for higher costs,
// relative to the requested devices. Nodes with similar costs may have the same score: see
// Scoring.Exact in package plugins.
func (o *Outlook) Score(cost int64, t *Task, highest int64) int64 {
	scale := farWeight * (o.whole + t.Amount) * one / 4
	return max(0, min(highest, (highest*scale-highest*cost)/(2*scale)))
}

// Worst exceeds the cost of any placement.
const Worst = 1 << 50
