// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"math"
	"slices"
)

// fluid returns values of things: the cost of each thing if things may be cut in pieces and bins
// may be bought in fractions. Their sum bounds the cost of any packing from below.
//
// A bin spreads its price over its resources and groups. In a bin, a thing costs its share of each,
// and its value is its cost in the cheapest bin. For any spreading, no bin can hold more value than
// its price. The search therefore maximizes the total value of all things over the spreadings. The
// total is a concave function, climbed with multiplicative steps: a resource with more demand than
// supply becomes more expensive. If each thing were assigned to one bin, the function would jump;
// instead, things are distributed over the cheap bins in shares that become sharper from step to
// step.
//
// Bins of nearly the same size and proportions spread their prices alike, so the search covers only
// the roomiest bin of each such family.
//
//	a bin of 4 CPU and 16 GiB for 10; CPU bears 0.8 of the price, memory 0.2
//	a thing of 2 CPU and 4 GiB costs 10 * (0.8 * 2/4 + 0.2 * 4/16) = 4.5 in it
//
// spending is by bin, from the last step; it identifies the promising bins.
func (f *filler) fluid(counts []int) (values, spending []float64) {
	g := newSpreading(f, counts)
	values = make([]float64, len(counts))
	var best [][]float64
	most := -1.0
	for step := range fluidSteps {
		progress := float64(step) / fluidSteps
		g.share(10 * math.Pow(100, progress)) // from 10 to 1000
		if sum := g.worth(values, g.leading); sum > most {
			most, best = sum, make([][]float64, len(g.bins))
			for _, at := range g.leaders {
				best[at] = slices.Clone(g.weights[at])
			}
		}
		g.shift(0.5 * math.Pow(0.02, progress))
	}
	spending = g.spending()
	for at, w := range best {
		copy(g.weights[at], w)
	}
	// The bound must hold for all bins, not only for the leaders, so compute the values once more
	// over all.
	g.worth(values, g.at)
	return values, spending
}

// fluidSteps is the number of search steps. Further steps change little.
const fluidSteps = 150

// spreading is the distribution of the bins' prices.
//
// The weights of a bin add up to 1.
type spreading struct {
	f            *filler
	counts, bins []int
	// leaders holds the positions in bins covered by the search. weights holds the shares of each
	// bin's price borne by its resources and groups, and load holds the fill of its resources and
	// groups by all things. Both are shared with the bin's leader.
	leaders       []int
	weights, load [][]float64
	// at holds, by item, the positions in bins of all suitable bins. leading holds the positions of
	// the leaders among them, and costs holds the cost of one thing in each of these leaders. All
	// bins of a family take the same items, so an item with a suitable bin has a leader.
	at, leading [][]int
	costs       [][]float64
}

// newSpreading returns the initial spreading. It does not modify counts.
func newSpreading(f *filler, counts []int) *spreading {
	g := &spreading{f: f, counts: counts, costs: make([][]float64, len(counts)), at: make([][]int, len(counts)),
		leading: make([][]int, len(counts))}
	for bin := range f.p.Bins {
		if len(f.items[bin]) > 0 {
			g.bins = append(g.bins, bin)
		}
	}

	g.lead()
	for at, bin := range g.bins {
		_, leads := slices.BinarySearch(g.leaders, at)
		for _, i := range f.items[bin] {
			if counts[i] > 0 {
				g.at[i] = append(g.at[i], at)
				if leads {
					g.leading[i] = append(g.leading[i], at)
				}
			}
		}
	}

	for i := range g.at {
		g.costs[i] = make([]float64, len(g.leading[i]))
	}
	return g
}

// lead chooses the leaders and assigns their weights to their families. The bin with the most of
// the first resource leads its family.
func (g *spreading) lead() {
	families := map[string]int{} // position of the leader in bins, by family
	of := make([]string, len(g.bins))
	for at, bin := range g.bins {
		b := &g.f.p.Bins[bin]
		of[at] = familyOf(b, g.f.items[bin])
		if first, known := families[of[at]]; !known || g.f.p.Bins[g.bins[first]].Room[0] < b.Room[0] {
			families[of[at]] = at
		}
	}

	g.weights, g.load = make([][]float64, len(g.bins)), make([][]float64, len(g.bins))
	for at := range g.bins {
		if families[of[at]] == at {
			g.leaders = append(g.leaders, at)
			g.weights[at], g.load[at] = g.even(), make([]float64, len(g.f.room)+len(g.f.p.Apart))
		}
	}
	for at := range g.bins {
		g.weights[at], g.load[at] = g.weights[families[of[at]]], g.load[families[of[at]]]
	}
}

// familyOf returns a key shared by bins with the same items and nearly the same size and
// proportions: keys have steps of half a power of two by size, and of a fifth of a power of two by
// proportions.
//
//	int(2 * log2(room)): 32 and 40 are alike, 32 and 64 are not
func familyOf(b *Bin, items []int) string {
	key := fmt.Sprint(int(2*math.Log2(float64(b.Room[0]+1))), items)
	for _, room := range b.Room[1:] {
		key += fmt.Sprint(" ", int(5*math.Log2(float64(room+1)/float64(b.Room[0]+1))))
	}
	return key
}

// even returns the initial weights: the resources share the price equally, and groups bear little
// of it.
func (g *spreading) even() []float64 {
	w := make([]float64, len(g.f.room)+len(g.f.p.Apart))
	for k := range w {
		if w[k] = 0.01; k < len(g.f.room) {
			w[k] = 1 / float64(len(g.f.room))
		}
	}
	normalise(w)
	return w
}

// normalise scales weights so that they add up to 1.
func normalise(w []float64) {
	sum := 0.0
	for _, x := range w {
		sum += x
	}
	for k := range w {
		w[k] /= sum
	}
}

// each calls do for each resource and group with the share of a bin that a thing takes. It does not
// check for resources missing in the bin, because the bin would not permit the item.
func (g *spreading) each(item, bin int, do func(k int, share float64)) {
	room := g.f.p.Bins[bin].Room
	for r, size := range g.f.p.Items[item].Size {
		if size > 0 {
			do(r, float64(size)/float64(room[r]))
		}
	}
	for _, group := range g.f.groups[item] {
		do(len(room)+group, 1/float64(g.f.p.Apart[group].Most))
	}
}

// cost returns the cost of a thing in a bin. It inlines the loop of each, because it is the hottest
// function.
func (g *spreading) cost(item, at int) (sum float64) {
	weights, room := g.weights[at], g.f.p.Bins[g.bins[at]].Room
	for r, size := range g.f.p.Items[item].Size {
		if size > 0 {
			sum += weights[r] * float64(size) / float64(room[r])
		}
	}
	for _, group := range g.f.groups[item] {
		sum += weights[len(room)+group] / float64(g.f.p.Apart[group].Most)
	}
	return sum * g.f.p.Bins[g.bins[at]].Price
}

// share distributes the things over their bins, preferring cheap ones, and adds up the load.
// sharpness determines the preference for the cheapest bin: a high value gives it nearly
// everything.
func (g *spreading) share(sharpness float64) {
	for _, at := range g.leaders {
		clear(g.load[at])
	}
	for i, n := range g.counts {
		if n == 0 || len(g.at[i]) == 0 {
			continue
		}
		least, sum := math.Inf(1), 0.0
		for c, at := range g.leading[i] {
			g.costs[i][c] = g.cost(i, at)
			least = min(least, g.costs[i][c])
		}

		for c, cost := range g.costs[i] {
			g.costs[i][c] = math.Exp(-sharpness * (cost - least) / (least + tiny))
			sum += g.costs[i][c]
		}

		for c, at := range g.leading[i] {
			part := float64(n) * g.costs[i][c] / sum
			if part < tiny {
				continue
			}
			g.each(i, g.bins[at], func(k int, share float64) { g.load[at][k] += part * share })
		}
	}
}

// shift makes resources and groups with above-average demand more expensive. Steps are
// multiplicative (multiplicative weights) and shrink over time. A weight never becomes 0, since it
// could not grow again.
func (g *spreading) shift(step float64) {
	for _, at := range g.leaders {
		load := g.load[at]
		most := 0.0
		for _, l := range load {
			most = max(most, l)
		}
		if most <= 0 {
			continue
		}
		for k, l := range load {
			g.weights[at][k] = max(g.weights[at][k], 1e-6) * math.Exp(step*l/most)
		}
		normalise(g.weights[at])
	}
}

// spending returns the amount spent on each leading bin if it is bought as often as its fullest
// resource requires. Other bins have 0.
func (g *spreading) spending() []float64 {
	list := make([]float64, len(g.f.p.Bins))
	for _, at := range g.leaders {
		bin := g.bins[at]
		for _, load := range g.load[at] {
			list[bin] = max(list[bin], load*g.f.p.Bins[bin].Price)
		}
	}
	return list
}

// worth sets the values to the things' costs in the cheapest of the bins, and returns their sum. A
// thing without a bin is worth 0.
func (g *spreading) worth(values []float64, bins [][]int) (sum float64) {
	for i, n := range g.counts {
		if values[i] = 0; n == 0 || len(bins[i]) == 0 {
			continue
		}
		values[i] = math.Inf(1)
		for _, at := range bins[i] {
			values[i] = min(values[i], g.cost(i, at))
		}
		sum += values[i] * float64(n)
	}
	return sum
}

// boundSteps limits the fillings examined by bound, over all bins. Fewer steps may lower the bound,
// but cannot make it invalid.
const boundSteps = 1_000_000

// bound returns a lower bound on the cost of the things in counts, for any packing. Values yield a
// valid bound if no bin can hold more value than it costs. bound therefore divides the value of
// each thing by the highest ratio of value to price among the bins that may take the thing.
//
//	a bin for 10 could hold things worth 11 by the values; then the values of all things that may go
//	there are divided by 1.1, and no bin holds more than its price
//
// The sum of the divided values bounds any packing, since each of its bins costs at least the value
// of its things.
func (f *filler) bound(bins []int, values []float64, counts []int) float64 {
	worst := slices.Repeat([]float64{1}, len(values))
	for _, bin := range bins {
		// The bin changes nothing if its ratio is at most the smallest divisor of its things.
		enough := math.Inf(1)
		for _, i := range f.items[bin] {
			enough = min(enough, worst[i])
		}
		price := f.p.Bins[bin].Price
		// The ceiling is valid even if the search for the best filling was cut short.
		_, ceiling := f.fillBest(bin, values, counts, enough*price, boundSteps/len(bins))
		if ceiling <= enough*price {
			continue
		}
		for _, i := range f.items[bin] {
			worst[i] = max(worst[i], ceiling/price) // infinite for a free bin
		}
	}

	sum := 0.0
	for i, n := range counts {
		sum += max(values[i], 0) * float64(n) / worst[i]
	}
	return sum
}

// worth returns the total value of the things in counts. Values below 0 count as 0.
func worth(values []float64, counts []int) (sum float64) {
	for i, n := range counts {
		sum += max(values[i], 0) * float64(n)
	}
	return sum
}

// usual returns the highest value per size among the things without a group. It is the worth of
// room without groups, and the starting point for the groups' charges.
func (f *filler) usual(bin int, values []float64, counts []int) (best float64) {
	f.empty(bin)
	f.measure()
	for _, i := range f.items[bin] {
		if counts[i] > 0 && len(f.groups[i]) == 0 {
			best = max(best, values[i]/(f.share(i)+tiny))
		}
	}
	return best
}
