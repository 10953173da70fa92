package packing

import (
	"fmt"
	"math"
	"slices"
)

// fluid returns values of things: what each costs where things may be cut in pieces and bins bought
// in parts. Their sum bounds the cost of any packing from below.
//
// A bin spreads its price over its resources and groups; a thing costs, in a bin, what it takes of
// each, and is worth what it costs in the cheapest bin. Whatever the spreading is, no bin can hold
// more value than its price. So the search is for the spreading that makes all things together
// worth most: a concave function, climbed with steps in proportion (a resource of which more is
// wanted than there is becomes dearer). That things choose one bin makes it jump; they choose the
// cheap ones in shares instead, which become sharper from step to step.
//
// Bins of nearly the same size and proportions spread their prices alike: the search is about one
// of each such family, the roomiest.
//
//	a bin of 4 CPU and 16 GiB for 10; CPU bears 0.8 of the price, memory 0.2
//	a thing of 2 CPU and 4 GiB costs 10 * (0.8 * 2/4 + 0.2 * 4/16) = 4.5 in it
//
// spending is by bin, of the last step; it says which bins are worth a look.
func (f *filler) fluid(counts []int) (values, spending []float64) {
	g := newSpreading(f, counts)
	values = make([]float64, len(counts))
	var best [][]float64
	most := -1.0
	for step := range fluidSteps {
		progress := float64(step) / fluidSteps
		g.share(10 * math.Pow(100, progress)) // from 10 to 1000
		if sum := g.worth(values, g.leading); sum > most {
			most, best = sum, g.copied()
		}
		g.shift(0.5 * math.Pow(0.02, progress))
	}
	spending = g.spending()
	for at, w := range best {
		copy(g.weights[at], w)
	}
	// The bound has to hold for all bins, not only for the leaders, so the values are computed once
	// more over all.
	g.worth(values, g.at)
	return values, spending
}

// fluidSteps is how many steps the search takes. More change little.
const fluidSteps = 150

// spreading is how the bins spread their prices.
//
// weights of a bin add up to 1. Those that are led share the slice of their leader.
type spreading struct {
	f      *filler
	counts []int
	bins   []int
	// leaders are the positions in bins of those that the search is about. weights are the shares
	// of a bin's price that its resources and groups bear, those of its leader, and load is how
	// full all things would make so many bins as they buy of it.
	leaders       []int
	weights, load [][]float64
	// at and leading are, by item, the positions in bins of all into which it may go, and of the
	// leaders among them; costs are those of one thing in the latter. A family takes the same
	// things, so what has a bin has a leader.
	at, leading [][]int
	costs       [][]float64
}

// newSpreading returns the spreading with which the search begins. counts is not changed.
func newSpreading(f *filler, counts []int) *spreading {
	g := &spreading{f: f, counts: counts, costs: make([][]float64, len(counts)), at: make([][]int, len(counts)),
		leading: make([][]int, len(counts))}
	for bin := range f.p.Bins {
		if len(f.items[bin]) > 0 {
			g.bins = append(g.bins, bin)
		}
	}

	g.lead()
	leads := make([]bool, len(g.bins))
	for _, at := range g.leaders {
		leads[at] = true
	}

	for at, bin := range g.bins {
		for _, i := range f.items[bin] {
			if counts[i] > 0 {
				g.at[i] = append(g.at[i], at)
				if leads[at] {
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

// lead chooses the leaders, and gives their weights to those that they lead. The one with the most
// of the first resource leads its family.
func (g *spreading) lead() {
	families := map[string]int{} // the leader's position in bins
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

// familyOf names those bins that are nearly alike but for their price: half a power of two by size,
// a tenth by proportions, the same items.
//
//	int(2 * log2(room)): 32 and 40 are alike, 32 and 64 are not
func familyOf(b *Bin, items []int) string {
	key := fmt.Sprint(int(2*math.Log2(float64(b.Room[0]+1))), items)
	for _, room := range b.Room[1:] {
		key += fmt.Sprint(" ", int(5*math.Log2(float64(room+1)/float64(b.Room[0]+1))))
	}
	return key
}

// even are the weights with which the search begins: the resources share the price. Groups begin
// with little.
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

// copied returns the leaders' weights. Positions that are no leader's are nil.
func (g *spreading) copied() [][]float64 {
	list := make([][]float64, len(g.bins))
	for _, at := range g.leaders {
		list[at] = slices.Clone(g.weights[at])
	}
	return list
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

// each calls do for each resource and group of which a thing takes a share of a bin. A resource of
// which the bin has none is not asked: the thing would not go there.
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

// cost is what a thing costs in a bin. It is the loop of each, written out: this is called most.
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

// share has the things choose their bins, the cheap ones more than others, and adds up the load.
// sharpness is how much more of the things the cheapest bin gets: with a high one, nearly all.
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

// shift makes what is wanted more than the rest dearer. Steps are in proportion (multiplicative
// weights), and smaller from time to time. A weight never becomes 0, since it could not grow again.
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

// spending is what would be spent on each bin, for as many as its fullest resource needs. The
// others have 0.
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

// worth sets the values to what things cost in the cheapest of the bins, and returns their sum. A
// thing that no bin takes is worth 0.
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
