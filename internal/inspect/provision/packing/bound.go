package packing

import (
	"math"
)

// bound returns what all things of the counts cost at least, however they are packed. Values are
// right for that if no bin can hold more value than it costs; they are divided by how far the worst
// bin is from that. Of each bin this needs no best filling, only a limit of its value (ceiling).
func (f *filler) bound(values []float64, counts []int) float64 {
	sum := 0.0
	for i, n := range counts {
		sum += values[i] * float64(n)
	}
	worst := 1.0
	for bin := range f.p.Bins {
		if ceiling := f.ceiling(bin, values, counts, worst*f.p.Bins[bin].Price); ceiling > worst*f.p.Bins[bin].Price {
			if f.p.Bins[bin].Price <= 0 {
				return 0
			}
			worst = ceiling / f.p.Bins[bin].Price
		}
	}
	return sum / worst
}

// ceiling returns a value that no filling of the bin exceeds: that of the best filling where things
// may be cut in pieces, and all resources are one, their weighted sum. Any weights give a ceiling;
// a few steps look for low ones. It stops at enough: a value that changes nothing.
//
// A bin holds few things of a group, however much room it has. For that, each thing of the group is
// charged, and the charges of as many as the bin holds are added.
func (f *filler) ceiling(bin int, values []float64, counts []int, enough float64) float64 {
	charged, charges := f.charge(bin, values, counts)
	for r := range f.weight {
		f.weight[r] = 1
	}
	least := math.Inf(1)
	step := 0.7
	for range 24 {
		value, use := f.divisible(bin, charged, counts)
		least = min(least, value+charges)
		if least <= enough {
			return least
		}
		// A resource of which the filling needs more than there is becomes dearer.
		total := 0.0
		for r := range f.weight {
			f.weight[r] *= math.Exp(step * (use[r] - 1))
			total += f.weight[r]
		}
		for r := range f.weight {
			f.weight[r] *= float64(len(f.weight)) / total
		}
		step *= 0.9
	}
	return least
}

// divisible fills a bin with things that may be cut in pieces, by their weighted sizes. use is
// which share of each resource that takes: more than 1 is possible, because only the sum is
// limited.
func (f *filler) divisible(bin int, values []float64, counts []int) (value float64, use []float64) {
	b := &f.p.Bins[bin]
	total := 0.0
	for r, room := range b.Room {
		if f.full[r] = 0; room > 0 {
			f.full[r] = f.weight[r] / float64(room)
			total += f.weight[r]
		}
	}

	f.orderBy(bin, values, counts)
	use = make([]float64, len(b.Room))
	for _, c := range f.order {
		n := float64(counts[c.item])
		if share := f.share(c.item); share > 0 {
			n = min(n, total/share)
			total -= n * share
		}
		if n <= 0 {
			break
		}
		value += n * values[c.item]
		for r, size := range f.p.Items[c.item].Size {
			if b.Room[r] > 0 {
				use[r] += n * float64(size) / float64(b.Room[r])
			}
		}
	}

	return value, use
}

// charge returns the values less what the groups' things are charged, and what a bin's things of
// all groups are charged at most. Of a group the charge leaves what its cheapest thing is worth by
// size among those of no group, as far as that is known: whatever it is, the ceiling stays one.
func (f *filler) charge(bin int, values []float64, counts []int) (charged []float64, charges float64) {
	if len(f.p.Apart) == 0 {
		return values, 0
	}
	charged = append([]float64(nil), values...)
	usual := f.usual(bin, values, counts)

	for _, apart := range f.p.Apart {
		charge := math.Inf(1)
		for _, i := range apart.Items {
			if counts[i] > 0 && charged[i] > 0 {
				charge = min(charge, max(charged[i]-usual*f.share(i), 0))
			}
		}
		if math.IsInf(charge, 1) || charge == 0 {
			continue
		}
		for _, i := range apart.Items {
			charged[i] = max(charged[i]-charge, 0)
		}
		charges += charge * float64(apart.Most)
	}

	return charged, charges
}

// usual is the value for its size of the best thing that is in no group.
func (f *filler) usual(bin int, values []float64, counts []int) (best float64) {
	for r, room := range f.p.Bins[bin].Room {
		if f.full[r] = 0; room > 0 {
			f.full[r] = 1 / float64(room)
		}
	}
	for _, i := range f.items[bin] {
		if counts[i] > 0 && len(f.groups[i]) == 0 {
			best = max(best, values[i]/(f.share(i)+tiny))
		}
	}
	return best
}
