// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fragmentation

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var (
	gpus   = Devices{Unit: 1000}
	plenty = Conditions{CPU: 1 << 30, NearPercent: 100, Rounds: ThoroughRounds}
)

func drawTasks(t *rapid.T) []Task {
	var tasks []Task
	for range rapid.IntRange(0, 8).Draw(t, "tasks") {
		tasks = append(tasks, Task{
			CPU: rapid.Int64Range(0, 20).Draw(t, "cpu"), Memory: rapid.Int64Range(0, 20).Draw(t, "memory"),
			Amount: rapid.SampledFrom([]int64{0, 100, 350, 650, 1000, 2000, 4000}).Draw(t, "amount"), Weight: rapid.Int64Range(1, 9).Draw(t, "weight"),
		})
	}
	return tasks
}

// TestCostIsTheDifferenceOfWorth verifies that the result of Cost for a share on its best device is
// the minimum reduction of the node's worth over all devices.
func TestCostIsTheDifferenceOfWorth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tasks := drawTasks(t)
		left := make([]int64, 1001)
		for i := range left {
			left[i] = int64(i*7%13) * one
		}
		o := NewOutlook(Weigh(tasks), gpus, &Remainders{left, rapid.SampledFrom([]int64{25, 100}).Draw(t, "near"), rapid.Int64Range(0, scarce).Draw(t, "scarcity")})
		r := &Room{CPU: rapid.Int64Range(0, 30).Draw(t, "free cpu"), Memory: rapid.Int64Range(0, 30).Draw(t, "free memory"), WholeCPU: 30}
		for range rapid.IntRange(0, 4).Draw(t, "devices") {
			r.Devices = append(r.Devices, rapid.SampledFrom([]int64{0, 190, 350, 650, 1000}).Draw(t, "free"))
		}
		task := Task{CPU: rapid.Int64Range(0, 30).Draw(t, "its cpu"), Amount: rapid.SampledFrom([]int64{0, 100, 350, 1000, 2000}).Draw(t, "its amount")}
		if !Fits(r.Devices, task.Amount, 1000) {
			return
		}
		least, cost := int64(Worst), int64(0)
		for _, after := range placements(r, &task) {
			least = min(least, o.Worth(r)-o.Worth(after))
		}
		if cost, _ = o.Cost(r, &task); cost != least {
			t.Fatalf("cost %d, the worth falls by %d at least", cost, least)
		}
	})
}

// placements returns all ways to place a task.
func placements(r *Room, t *Task) (all []*Room) {
	after := *r
	after.CPU -= t.CPU
	after.Memory -= t.Memory
	after.Devices = slices.Clone(r.Devices)
	if t.Amount == 0 || t.Amount >= 1000 {
		for i, amount := 0, t.Amount; amount > 0; i++ {
			if after.Devices[i] == 1000 {
				after.Devices[i] = 0
				amount -= 1000
			}
		}
		return []*Room{&after}
	}
	for i, free := range r.Devices {
		if free >= t.Amount {
			one := after
			one.Devices = slices.Clone(after.Devices)
			one.Devices[i] -= t.Amount
			all = append(all, &one)
		}
	}
	return all
}

// TestRemaindersTellGoodFromBad verifies that, with shares of 650 and 350, a device with 350 free
// will be filled, and one with 300 free never.
func TestRemaindersTellGoodFromBad(t *testing.T) {
	tasks := []Task{{Amount: 650, Weight: 1}, {Amount: 350, Weight: 1}}
	r := NewRemainders(tasks, gpus, plenty)
	if good, bad := r.Left(350), r.Left(300); good > 200 || bad != 300 {
		t.Errorf("of 350 that are free %d thousandths are left, of 300 %d; want at most 200, and 300", good, bad)
	}
	if again := NewRemainders(tasks, gpus, plenty); !slices.Equal(again.left, r.left) {
		t.Error("the same tasks have other remainders the second time")
	}
}

// TestPlayCountsCPU verifies that, if there is CPU for one share of 500 per device, half of the
// capacity is placed.
func TestPlayCountsCPU(t *testing.T) {
	tasks := []Task{{Amount: 500, CPU: 4000, Weight: one}}
	short := plenty
	short.CPU = 4000 * 16 / usableCPU
	for _, test := range []struct {
		conditions Conditions
		want       int64
	}{{plenty, 1000}, {short, 500}} {
		g := newGame(tasks, 1000, &test.conditions)
		if placed := g.playRound(g.drawArrivals(playedDevices), playedDevices) / playedDevices; placed > test.want || placed < test.want-5 {
			t.Errorf("with %d of CPU, %d thousandths of a device are placed, want %d", test.conditions.CPU, placed, test.want)
		}
	}
}

// TestPlayKeepsRoomForShares verifies that the values found by the search place more than the first
// guess. A share of 810 wastes 190, and a pair of 470 only 60. More is placed in the end if some
// shares of 470 get separate devices early, leaving fewer devices for shares of 810.
func TestPlayKeepsRoomForShares(t *testing.T) {
	tasks := Weigh([]Task{
		{Amount: 810, Weight: 215}, {Amount: 470, Weight: 152}, {Amount: 1000, Weight: 77},
		{Amount: 320, Weight: 66}, {Amount: 650, Weight: 57}, {Amount: 460, Weight: 29}, {Amount: 230, Weight: 28},
	})
	g := newGame(tasks, 1000, &plenty)
	arrivals := g.drawArrivals(playedDevices)
	first := g.playRound(arrivals, playedDevices)
	g.search(ThoroughRounds)
	if searched := g.playRound(arrivals, playedDevices); searched*1000 < first*1005 {
		t.Errorf("with the values found %d is placed, with the first guess %d", searched, first)
	}
}

// TestBalanceCountsMoreWhereCPUIsScarce verifies that, if tasks want more CPU per device than the
// nodes have, stranded CPU and devices cost up to five times as much.
func TestBalanceCountsMoreWhereCPUIsScarce(t *testing.T) {
	tasks := Weigh([]Task{{Amount: 500, CPU: 4000, Weight: 1}, {CPU: 2000, Weight: 1}}) // together they want 12000 of CPU per device
	for _, test := range []struct{ cpu, want int64 }{{13000, 16}, {12000, 16}, {11600, 16 + 4*8}, {11000, 80}, {3000, 80}} {
		conditions := Conditions{CPU: test.cpu, NearPercent: 100, Rounds: QuickRounds}
		o := NewOutlook(tasks, gpus, NewRemainders(tasks, gpus, conditions))
		room := &Room{CPU: 0, WholeCPU: 1 << 16, Devices: []int64{1000, 1000}}
		if got := o.Terms(room).Imbalance; got != 2000*one*test.want/80 {
			t.Errorf("with %d of CPU for a device, the imbalance is %d, want %d", test.cpu, got, 2000*one*test.want/80)
		}
	}
}
