// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// sets enumerates sets of few bins by price, and packs all things into each, or proves that
// impossible. The first set that takes them is the cheapest. The price up to which all sets are
// excluded is a bound, which the linear program cannot provide, because it buys fractional bins.
//
//	the solution so far costs 20, its bound is 14.5; there are bins for 10, 6 and 4
//	sets of more than 14.5 and less than 20, by price: 10+6, 6+6+4, ..., 10+4+4, ...
//	10+6 is proved not to take all things, 6+6+4 takes them: nothing cheaper is possible
type sets struct {
	s     *search
	bins  []int // most expensive first
	tests []test
	found []set
	steps int // remaining steps
	// from (exclusive) and to (inclusive) bound the prices of the listed sets.
	from, to float64
}

// test is a measure of all things: bins with a smaller total cannot take them. need and holds are
// in the test's unit: a resource's unit, or money.
type test struct {
	need  float64
	holds []float64 // by position in bins
	rate  []float64 // by position: the highest ratio of measure to price of this or a cheaper bin
}

// set is a set of bins and its price. bins holds positions in sets.bins, in order; a position may
// occur more than once.
type set struct {
	bins  []int
	price float64
}

// fewBins is the maximum number of bins in a solution for which sets are enumerated, because the
// number of sets grows exponentially with it.
const fewBins = 9

// inSets improves the solution and the bound by sets. It does not support limits.
//
// It searches the gap between bound and cost from below, in growing parts: if a part has too many
// sets, the proofs of the earlier parts still count.
func (s *search) inSets() {
	if len(s.bins) > fewBins {
		return
	}
	counts := s.packed()
	cost := sumOf(s.bins)
	k := &sets{s: s, from: s.least(counts) * (1 - tiny)}
	k.prepare(counts)

	gap := cost - k.from
	for _, share := range []float64{0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1} {
		k.to = min(cost-gap*(1-share), cost*(1-tiny))
		k.found, k.steps = k.found[:0], setSteps
		needs := make([]float64, len(k.tests))
		for t := range k.tests {
			needs[t] = k.tests[t].need
		}
		k.list(0, k.to, needs, nil)
		// Some sets of this part are not listed, so it proves nothing.
		if k.steps <= 0 {
			return
		}

		slices.SortStableFunc(k.found, func(a, b set) int { return cmp.Compare(a.price, b.price) })
		for _, set := range k.found {
			packed, sure := k.pack(set, counts)
			if packed != nil {
				s.proof, s.bins = true, packed
				return
			}
			// Whether this set takes everything is unknown, so the proofs for more expensive sets
			// do not count: the bound ends here.
			if !sure {
				s.bounded = max(s.bounded, set.price)
				return
			}
		}
		// All sets up to this price were ruled out.
		s.bounded = max(s.bounded, k.to)
		k.from = k.to
	}
	// No set cheaper than the solution takes everything.
	s.proof = true
}

// prepare creates the tests: each resource, and the things' worth by the programs. Each test is a
// necessary condition: bins with less total CPU than the things need cannot take them, and neither
// can bins that hold less value, by any values.
func (k *sets) prepare(counts []int) {
	s := k.s
	k.bins = slices.Clone(s.useful)
	slices.Reverse(k.bins)
	for r := range s.f.room {
		t := test{need: 0, holds: make([]float64, len(k.bins))}
		for i, n := range counts {
			t.need += float64(s.p.Items[i].Size[r]) * float64(n)
		}
		for at, bin := range k.bins {
			t.holds[at] = float64(s.p.Bins[bin].Room[r])
		}
		k.tests = append(k.tests, t)
	}
	for _, values := range [][]float64{s.duals, s.fluid} {
		t := test{need: worth(values, counts), holds: make([]float64, len(k.bins))}
		for at, bin := range k.bins {
			_, t.holds[at] = s.f.fillBest(bin, values, counts, 0, boundSteps/len(k.bins))
		}
		k.tests = append(k.tests, t)
	}

	for t := range k.tests {
		test := &k.tests[t]
		// Rounding errors of sums must not rule out a set.
		test.need *= 1 - 1e-9
		test.rate = make([]float64, len(k.bins))
		rate := 0.0
		for at := len(k.bins) - 1; at >= 0; at-- {
			rate = max(rate, test.holds[at]/(s.p.Bins[k.bins[at]].Price+tiny))
			test.rate[at] = rate
		}
	}
}

// list adds to k.found the sets that extend bins by bins of k.bins[at:], cost at most money more,
// and pass all tests. needs holds the needs of the tests not yet met by bins. Sets with a price up
// to k.from are omitted, because they were listed before.
func (k *sets) list(at int, money float64, needs []float64, bins []int) {
	if k.steps--; k.steps <= 0 {
		return
	}
	if money < k.to-k.from && slices.Max(needs) <= 0 {
		k.found = append(k.found, set{slices.Clone(bins), k.to - money})
	}

	// Further purchases contribute at most the rate times the remaining money. If that does not
	// cover a need, no extension of this set does.
	for ; at < len(k.bins); at++ {
		price := k.s.p.Bins[k.bins[at]].Price
		for t := range needs {
			if needs[t] > k.tests[t].rate[at]*money {
				return
			}
		}
		if price > money {
			continue
		}
		less := make([]float64, len(needs))
		for t := range needs {
			less[t] = needs[t] - k.tests[t].holds[at]
		}
		k.list(at, money-price, less, append(bins, at))
	}
}

// pack packs the things into the set. If it finds no packing, sure means that no packing exists.
// The search is exhaustive, unless it ends after packSteps tried places.
func (k *sets) pack(of set, counts []int) (packed []*pattern, sure bool) {
	b := &boxes{s: k.s, steps: packSteps}
	for _, at := range of.bins {
		bin := k.bins[at]
		b.bins = append(b.bins, bin)
		b.rooms = append(b.rooms, slices.Clone(k.s.p.Bins[bin].Room))
		b.spare = append(b.spare, slices.Clone(k.s.f.spares))
		b.has = append(b.has, make([]int, len(counts)))
	}
	whole := make([]float64, len(k.s.f.room))
	for _, room := range b.rooms {
		for r := range room {
			whole[r] += float64(room[r])
		}
	}
	shares := make([]float64, len(counts))
	for i, n := range counts {
		for range n {
			b.things = append(b.things, i)
		}
		for r, size := range k.s.p.Items[i].Size {
			// The largest things first: they have the fewest places.
			shares[i] = max(shares[i], float64(size)/max(whole[r], 1))
		}
	}
	slices.SortStableFunc(b.things, func(a, c int) int { return cmp.Or(cmp.Compare(shares[c], shares[a]), cmp.Compare(a, c)) })
	b.whole = whole

	if !b.put(0, 0) {
		return nil, b.steps > 0
	}
	for at, bin := range b.bins {
		p := &pattern{bin: bin, price: k.s.p.Bins[bin].Price}
		for i, n := range b.has[at] {
			if n > 0 {
				p.parts = append(p.parts, Part{i, n})
			}
		}
		if len(p.parts) > 0 {
			packed = append(packed, p)
		}
	}
	return packed, true
}

// boxes are the bins of a set while they are being filled. rooms and spare are the bins' remaining
// capacity, by resource and by group; has is their contents.
type boxes struct {
	s      *search
	bins   []int
	rooms  [][]int64
	spare  [][]int
	has    [][]int // by bin and item
	whole  []float64
	things []int // largest first
	steps  int   // remaining steps
}

// put places the things starting at thing into bins. It tries the bin with the least remaining room
// first. It never puts a thing into an earlier bin than the previous equal thing.
//
// first is the bin of the previous thing and the starting point for an equal thing; otherwise the
// same packing would be tried once for each order of equal things. If put returns false with steps
// left, no packing exists.
func (b *boxes) put(thing, first int) bool {
	if thing == len(b.things) {
		return true
	}
	if b.steps--; b.steps <= 0 {
		return false
	}
	i := b.things[thing]
	if thing > 0 && b.things[thing-1] != i {
		first = 0
	}

	type way struct {
		bin  int
		left float64
	}
	var ways [fewBins + 4]way
	list := ways[:0]
	for at := first; at < len(b.bins); at++ {
		if left, fits := b.leaves(at, i); fits && !b.likeOther(at, first) {
			list = append(list, way{at, left})
		}
	}
	slices.SortStableFunc(list, func(a, c way) int { return cmp.Compare(a.left, c.left) })
	for _, w := range list {
		b.move(w.bin, i, 1)
		if b.put(thing+1, w.bin) {
			return true
		}
		b.move(w.bin, i, -1)
		if b.steps <= 0 {
			return false
		}
	}
	return false
}

// leaves returns the room a thing leaves in a bin. fits is false if the thing may not go there.
func (b *boxes) leaves(at, item int) (left float64, fits bool) {
	it := &b.s.p.Items[item]
	if _, may := slices.BinarySearch(it.Bins, b.bins[at]); !may || !Holds(b.rooms[at], it.Size) {
		return 0, false
	}
	for _, g := range b.s.f.groups[item] {
		if b.spare[at][g] == 0 {
			return 0, false
		}
	}
	for r, size := range it.Size {
		left = math.Max(left, float64(b.rooms[at][r]-size)/math.Max(b.whole[r], 1))
	}
	return left, true
}

// likeOther reports whether an earlier bin is of the same kind and has the same contents. Then it
// makes no difference which of the two bins gets the thing.
func (b *boxes) likeOther(at, first int) bool {
	for other := first; other < at; other++ {
		if b.bins[other] == b.bins[at] && slices.Equal(b.has[other], b.has[at]) {
			return true
		}
	}
	return false
}

// move puts n things of an item into a bin, or takes them out for a negative n.
func (b *boxes) move(at, item, n int) {
	for r, size := range b.s.p.Items[item].Size {
		b.rooms[at][r] -= size * int64(n)
	}
	for _, g := range b.s.f.groups[item] {
		b.spare[at][g] -= n
	}
	b.has[at][item] += n
}

// exact finds the optimum for few things: the cheapest bin for each set of them, and from these the
// cheapest partition into sets. The costs of sets ignore limits, so there must be none.
//
// It enumerates all sets of things as bits: 11 things have 2,048 sets, and 3^11 = 177,147 pairs of
// a set and a part of it. Parts containing the set's lowest thing suffice, because some bin holds
// it.
func (s *search) exact() {
	var things []int // item of each thing
	for i, item := range s.p.Items {
		if s.f.alone(i) != nil {
			for range item.Count {
				things = append(things, i)
			}
		}
	}
	all := 1<<len(things) - 1
	one := make([]*pattern, all+1) // by set: the cheapest bin
	cost := make([]float64, all+1) // by set: the cost of the cheapest packing
	first := make([]int, all+1)    // by set: the part in the first bin
	counts := make([]int, len(s.p.Items))
	for set := 1; set <= all; set++ {
		clear(counts)
		for rest := set; rest > 0; rest &= rest - 1 {
			counts[things[bits.TrailingZeros(uint(rest))]]++
		}
		// The cheapest bin that takes the whole set, or nil.
		one[set] = s.last(counts)
		cost[set] = math.Inf(1)
		lowest := set & -set
		for part := set; part > 0; part = (part - 1) & set {
			if part&lowest == 0 || one[part] == nil {
				continue
			}
			if sum := one[part].price + cost[set&^part]; sum < cost[set] {
				cost[set], first[set] = sum, part
			}
		}
	}
	s.bins = nil
	for set := all; set > 0; set &^= first[set] {
		s.bins = append(s.bins, one[first[set]])
	}
	s.proof = true
}
