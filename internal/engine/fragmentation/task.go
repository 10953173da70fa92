// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fragmentation

import (
	"fmt"
	"slices"
)

// Task is a shape of future pods.
type Task struct {
	CPU, Memory int64 // thousandths, bytes
	// Amount is the request for devices, in steps: less than a device is a share of one device;
	// otherwise it is whole devices. See [Devices.Steps].
	Amount int64
	Weight int64 // frequency relative to the other tasks
}

// Devices describes the division of a resource into devices.
type Devices struct {
	// Unit is the amount of the resource per device.
	Unit int64
}

// mostSteps bounds the number of distinguishable shares of a device.
const mostSteps = 1000

// Whole returns the size of a device in steps.
func (d Devices) Whole() int64 { return min(d.Unit, mostSteps) }

// Steps converts a request: shares are rounded up to a step, several devices to whole ones.
func (d Devices) Steps(amount int64) int64 {
	whole := d.Whole()
	if amount > d.Unit {
		return (amount + d.Unit - 1) / d.Unit * whole
	}
	return divideUp(max(amount, 0), whole, d.Unit)
}

// Free converts a free amount of a device, rounding down to a step.
func (d Devices) Free(amount int64) int64 {
	return max(0, min(amount, d.Unit)) * d.Whole() / d.Unit
}

// divideUp returns a*b/by, rounded up.
func divideUp(a, b, by int64) int64 { return (a*b + by - 1) / by }

// one is the weight of all tasks together. Sums of a node with sixteen devices stay below 2^40.
const one = 1 << 20

// Weigh scales the weights so that their sum is about one. Every task keeps a positive weight.
func Weigh(tasks []Task) []Task {
	var total int64
	for i := range tasks {
		total += tasks[i].Weight
	}
	scaled := slices.Clone(tasks)
	for i := range scaled {
		scaled[i].Weight = max(1, scaled[i].Weight*one/max(total, 1))
	}
	return scaled
}

// Words formats a term of a worth as a number of devices.
func (d Devices) Words(term int64) string {
	return fmt.Sprintf("%.2f", float64(term)/float64(d.Whole()*one))
}
