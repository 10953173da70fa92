// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import "math"

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
	worst := make([]float64, len(values))
	for i := range worst {
		worst[i] = 1
	}
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
