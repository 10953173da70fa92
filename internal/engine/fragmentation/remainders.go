// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fragmentation

import (
	"math/rand/v2"
	"slices"
)

// Remainders holds, by the free amount of a device, its expected remainder when no task fits any
// more, in steps times one.
type Remainders struct {
	left        []int64
	nearPercent int64 // weight of the near term, in per cent
	scarcity    int64 // scarcity of CPU, from 0, if it suffices for all devices, to scarce
}

// scarce is the scarcity if the tasks want a sixteenth more CPU per device than the nodes have:
// some devices will end up without CPU, and it matters which.
const scarce = 16

// Conditions are the conditions of the simulation.
type Conditions struct {
	CPU         int64 // CPU of the nodes per device
	NearPercent int64 // weight of the near term, in per cent
	Rounds      int   // see QuickRounds
}

// More rounds than ThoroughRounds, or more devices, change the result by less than the random order
// of arrivals does. QuickRounds suffice for roughly known tasks.
const (
	ThoroughRounds = 60
	QuickRounds    = 10
	playedDevices  = 2000
	learntDevices  = 1000
	// demand is the total demand of all tasks, in per cent of the devices: more than available, so
	// that in the end every kind of task that fits anywhere has arrived.
	demand = 130
	// priorDevices is the weight of the first guess, as a number of devices.
	priorDevices = 3
	// usableCPU is the part of the CPU usable before nodes have too little for arriving tasks, in
	// sixteenths.
	usableCPU = 15
)

// NewRemainders simulates these tasks. It is deterministic: the same tasks give the same
// remainders, on every machine. Without a task that wants devices the first guess is kept. It takes
// time proportional to the rounds.
func NewRemainders(tasks []Task, devices Devices, conditions Conditions) *Remainders {
	g := newGame(tasks, devices.Whole(), &conditions)
	if g.wanted > 0 {
		g.search(conditions.Rounds)
	}
	return &Remainders{g.value, conditions.NearPercent, g.scarcity()}
}

// scarcity returns the scarcity of CPU, 0 unless the tasks want more CPU per device than the nodes
// have.
func (g *game) scarcity() int64 {
	var wanted int64
	for _, k := range g.kinds {
		wanted += k.weight * k.cpu
	}
	all := g.wanted / g.whole * g.cpu // CPU of the devices that the tasks want
	if all <= 0 {
		return 0
	}
	const parts = 16 * scarce // number of parts into which the whole is divided
	return max(0, min(scarce, wanted*parts/all-parts))
}

// search simulates with the current values and corrects them. It keeps the values that placed the
// most of a fixed list of arrivals, because corrected values need not be better.
func (g *game) search(rounds int) {
	arrivals, best, most := g.drawArrivals(playedDevices), g.value, int64(0)
	for range rounds {
		if placed := g.playRound(arrivals, playedDevices); placed > most {
			best, most = slices.Clone(g.value), placed
		}
		g.playRound(g.drawArrivals(learntDevices), learntDevices)
		g.learnValues()
	}
	g.value = best
}

// Left returns the expected remainder of a device with the given free amount, in thousandths of the
// device.
func (r *Remainders) Left(free int64) int64 {
	return r.left[free] * 1000 / (int64(len(r.left)-1) * one)
}

// game repeatedly fills devices with tasks that request a share or whole devices. Their CPU is
// pooled, and memory is ignored: the other terms cover the division among nodes.
type game struct {
	whole, cpu int64
	kinds      []arrival
	total      int64 // sum of the kinds' weights
	wanted     int64 // sum of the amounts of all kinds, multiplied by their weights
	random     *rand.Rand

	near         []int64 // amount of a device usable by the next task, by free steps
	value, prior []int64 // expected remainder of a device, now and at first, by free steps
	sum, count   []int64 // sum and number of the remainders of devices, by free steps they once had
	free         [][]int32
	passed       [][]int16 // free amounts of each device, from first to last
}

// arrival is a kind of task; a request for several devices is counted once for each.
type arrival struct{ amount, cpu, weight int64 }

// newGame prepares the kinds of arrivals. A task that wants several whole devices becomes as many
// arrivals of one, each with a share of the CPU: which node they share does not matter here.
func newGame(tasks []Task, whole int64, conditions *Conditions) *game {
	g := &game{whole: whole, cpu: conditions.CPU, random: rand.New(rand.NewPCG(1, 0))}
	for i := range tasks {
		t := &tasks[i]
		n := max(1, t.Amount/whole)
		k := arrival{min(t.Amount, whole), t.CPU / n, t.Weight * n}
		g.kinds = append(g.kinds, k)
		g.total += k.weight
		g.wanted += k.weight * k.amount
	}
	g.value, g.sum, g.count = make([]int64, whole+1), make([]int64, whole+1), make([]int64, whole+1)
	g.guessValues(conditions.NearPercent)
	return g
}

// guessValues makes the first guess of the values: the capacity unusable by the next task.
func (g *game) guessValues(nearPercent int64) {
	g.near = make([]int64, g.whole+1)
	var want int64
	for _, k := range g.kinds {
		if k.amount > 0 {
			want += k.weight
		}
	}

	for free := range g.value {
		var fit int64
		for _, k := range g.kinds {
			if k.amount > 0 && k.amount <= int64(free) {
				fit += k.weight
			}
		}

		if want > 0 {
			g.value[free] = int64(free) * ((want - fit) * one / want)
			g.near[free] = int64(free) * (fit * one / g.total * nearPercent / 100)
		}
	}

	g.prior = slices.Clone(g.value)
}

// drawArrivals draws the arrivals for a number of devices, in random order. The frequency of each
// kind follows its weight.
func (g *game) drawArrivals(devices int64) []arrival {
	// step is the weight between two arrivals that results in the intended total demand.
	step := max(1, g.wanted*100/(g.whole*devices*demand))
	list := make([]arrival, 0, g.total/step+1)
	at := g.random.Int64N(step)
	for _, k := range g.kinds {
		for at < k.weight {
			list = append(list, k)
			at += step
		}
		at -= k.weight
	}
	g.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// playRound fills the devices once, each task where it costs least, and returns the placed amount,
// in steps. Tasks that fit nowhere, or lack CPU, are dropped.
func (g *game) playRound(arrivals []arrival, devices int64) (placed int64) {
	g.free, g.passed = make([][]int32, g.whole+1), make([][]int16, devices)
	for i := range g.passed {
		g.passed[i] = []int16{int16(g.whole)}
		g.free[g.whole] = append(g.free[g.whole], int32(i))
	}
	worth := make([]int64, g.whole+1)
	for free := range worth {
		worth[free] = g.near[free] - farWeight*g.value[free]
	}

	rests := []int64{g.whole} // free amounts that devices have or had, ascending
	cpu := devices * g.cpu / 16 * usableCPU
	for _, a := range arrivals {
		if a.cpu > cpu {
			continue
		}
		if a.amount == 0 {
			cpu -= a.cpu
			continue
		}

		at := g.cheapestRest(rests, worth, a.amount)
		if at < 0 {
			continue
		}
		cpu -= a.cpu
		placed += a.amount
		g.takeFrom(at, a.amount)
		if i, known := slices.BinarySearch(rests, at-a.amount); !known {
			rests = slices.Insert(rests, i, at-a.amount)
		}
	}
	return placed
}

// cheapestRest returns the free amount of the best device for an amount, the least among equals; -1
// if it fits on none.
func (g *game) cheapestRest(rests, worth []int64, amount int64) (at int64) {
	at = -1
	for i := len(rests) - 1; i >= 0 && rests[i] >= amount; i-- {
		free := rests[i]
		if len(g.free[free]) > 0 && (at < 0 || worth[free]-worth[free-amount] <= worth[at]-worth[at-amount]) {
			at = free
		}
	}
	return at
}

// takeFrom takes an amount from the latest device with the given free amount.
func (g *game) takeFrom(free, amount int64) {
	last := len(g.free[free]) - 1
	device := g.free[free][last]
	g.free[free] = g.free[free][:last]
	g.free[free-amount] = append(g.free[free-amount], device)
	g.passed[device] = append(g.passed[device], int16(free-amount))
}

// learnValues updates the values to the mean remainder over the rounds. Each round weighs a fifth
// less than the next. With more weight on the latest, values can oscillate from round to round.
func (g *game) learnValues() {
	const part = 16 // counts are in sixteenths of a device, so that fading loses little to rounding
	for free := range g.sum {
		g.sum[free] -= g.sum[free] / 5
		g.count[free] -= g.count[free] / 5
	}
	for _, passed := range g.passed {
		left := int64(passed[len(passed)-1])
		for _, free := range passed {
			g.sum[free] += part * left
			g.count[free] += part
		}
	}
	for free, n := range g.count {
		if n > 0 {
			g.value[free] = (g.sum[free]*one + priorDevices*part*g.prior[free]) / (n + priorDevices*part)
		}
	}
}
