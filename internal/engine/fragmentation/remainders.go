package fragmentation

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Remainders are, by how much of a device is free, how much of it is expected to be left when no
// task fits any more, in steps times one.
type Remainders struct {
	left []int64
}

// How long is played on. With more devices or rounds the values change by less than chance does
// from one order of arrival to another.
const (
	playedDevices = 4000
	playedRounds  = 10
	// demand is how much all tasks together want of the devices, in per cent: more than there is,
	// so that in the end whatever fits somewhere has come.
	demand = 130
	// priorDevices is for how many devices the first guess counts.
	priorDevices = 3
)

// NewRemainders plays on with these tasks. It is deterministic.
func NewRemainders(tasks []Task, devices Devices) *Remainders {
	g := newGame(tasks, devices.Whole())
	if g.total == 0 {
		return &Remainders{left: g.value}
	}
	best, least := []int64(nil), int64(math.MaxInt64)
	for range playedRounds {
		g.playRound()
		if left := g.leftOver(); left < least { // corrected values need not be better ones
			best, least = slices.Clone(g.value), left
		}
		g.learnValues()
	}
	return &Remainders{left: best}
}

// Left is what is expected to be left of a device of which so much is free, in thousandths of the
// device.
func (r *Remainders) Left(free int64) int64 {
	return r.left[free] * 1000 / (int64(len(r.left)-1) * one)
}

// game fills devices with shares and whole tasks, over and over. CPU and memory are left out: they
// are the matter of the other terms.
type game struct {
	whole  int64
	sizes  []arrival
	total  int64 // of the arrivals' weights
	random *rand.Rand

	value, prior []int64 // by steps that are free
	sum, count   []int64 // of what was left of devices that had so much free, in steps
	free         [][]int32
	passed       [][]int16 // by device: what was free of it, from first to last
}

// arrival is how often an amount comes.
type arrival struct{ amount, weight int64 }

func newGame(tasks []Task, whole int64) *game {
	g := &game{whole: whole, random: rand.New(rand.NewPCG(1, 0))}
	weights := map[int64]int64{}
	for i := range tasks {
		if t := &tasks[i]; t.Amount > 0 {
			weights[min(t.Amount, whole)] += t.Weight * max(1, t.Amount/whole)
		}
	}
	for amount, weight := range weights {
		g.sizes = append(g.sizes, arrival{amount, weight})
		g.total += weight
	}
	slices.SortFunc(g.sizes, func(a, b arrival) int { return int(a.amount - b.amount) })
	g.value, g.sum, g.count = make([]int64, whole+1), make([]int64, whole+1), make([]int64, whole+1)
	g.guessValues()
	return g
}

// guessValues starts with what the next task cannot use.
func (g *game) guessValues() {
	for free := range g.value {
		var missed int64
		for _, a := range g.sizes {
			if a.amount > int64(free) {
				missed += a.weight
			}
		}
		if g.total > 0 {
			g.value[free] = int64(free) * (missed * one / g.total)
		}
	}
	g.prior = slices.Clone(g.value)
}

// playRound fills all devices once, each task where it raises what will be left by the least.
func (g *game) playRound() {
	g.free, g.passed = make([][]int32, g.whole+1), make([][]int16, playedDevices)
	for i := range g.passed {
		g.passed[i] = []int16{int16(g.whole)}
		g.free[g.whole] = append(g.free[g.whole], int32(i))
	}
	for wanted := int64(0); wanted < g.whole*playedDevices*demand/100; {
		amount := g.drawAmount()
		wanted += amount
		g.placeAmount(amount)
	}
}

// drawAmount returns the amount that comes next.
func (g *game) drawAmount() int64 {
	x := g.random.Int64N(g.total)
	for i := range g.sizes {
		if x -= g.sizes[i].weight; x < 0 {
			return g.sizes[i].amount
		}
	}
	return 0
}

func (g *game) placeAmount(amount int64) {
	at := int64(-1)
	for free := amount; free <= g.whole; free++ {
		if len(g.free[free]) > 0 && (at < 0 || g.value[free-amount]-g.value[free] < g.value[at-amount]-g.value[at]) {
			at = free
		}
	}
	if at < 0 {
		return
	}
	last := len(g.free[at]) - 1
	device := g.free[at][last]
	g.free[at] = g.free[at][:last]
	g.free[at-amount] = append(g.free[at-amount], device)
	g.passed[device] = append(g.passed[device], int16(at-amount))
}

// leftOver is what was left of all devices.
func (g *game) leftOver() (sum int64) {
	for _, passed := range g.passed {
		sum += int64(passed[len(passed)-1])
	}
	return sum
}

// learnValues takes the mean of what was left over the rounds, each counting for a fifth less than
// the one after it. Where the latest counts for more, values can swing from round to round.
func (g *game) learnValues() {
	const part = 16 // of a device, so that fading loses little
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
