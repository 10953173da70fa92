package packing

import "math"

// boundSteps is at how many fillings of all bins together the bound looks.
const boundSteps = 1_000_000

// bound returns what all things of the counts cost at least, however they are packed. Values are
// right for that if no bin can hold more value than it costs; each is divided by how far the worst
// bin is from that into which the thing may go.
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

// worth is what so many things of each item are worth.
func worth(values []float64, counts []int) (sum float64) {
	for i, n := range counts {
		sum += max(values[i], 0) * float64(n)
	}
	return sum
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
