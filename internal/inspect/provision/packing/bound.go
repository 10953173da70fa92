package packing

import "math"

// boundSteps is at how many fillings of all bins together the bound looks. With fewer the bound may
// be lower, but is never wrong.
const boundSteps = 1_000_000

// bound returns what all things of the counts cost at least, however they are packed. Values are
// right for that if no bin can hold more value than it costs; each is divided by how far the worst
// bin is from that into which the thing may go.
//
//	a bin for 10 could hold things worth 11 by the values: then the values of all things that may go
//	there are divided by 1.1, and no bin holds more than its price
//
// The sum of the divided values bounds any packing, since each bin of it costs at least what its
// things are worth.
func (f *filler) bound(bins []int, values []float64, counts []int) float64 {
	worst := make([]float64, len(values))
	for i := range worst {
		worst[i] = 1
	}
	for _, bin := range bins {
		// A bin that is no worse than the best of its things' worst changes nothing.
		enough := math.Inf(1)
		for _, i := range f.items[bin] {
			enough = min(enough, worst[i])
		}
		price := f.p.Bins[bin].Price
		// The ceiling holds even if the search for the best filling was cut short.
		_, ceiling := f.fillBest(bin, values, counts, enough*price, boundSteps/len(bins))
		if ceiling <= enough*price {
			continue
		}
		for _, i := range f.items[bin] {
			worst[i] = max(worst[i], ceiling/price) // endless if it costs nothing
		}
	}

	sum := 0.0
	for i, n := range counts {
		sum += max(values[i], 0) * float64(n) / worst[i]
	}
	return sum
}

// worth is what so many things of each item are worth. Values below 0 count as 0.
func worth(values []float64, counts []int) (sum float64) {
	for i, n := range counts {
		sum += max(values[i], 0) * float64(n)
	}
	return sum
}

// usual is the value for its size of the best thing that is in no group. It is what room is worth
// without groups, by which the charges of groups begin.
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
