// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// round buys whole bins: the linear program's purchases, rounded down, and for the rest the best
// result of a few methods. It is the step from fractional bins to a solution.
func (s *search) round() {
	var pool []*pattern
	for _, w := range s.bought {
		pool = append(pool, w.pattern)
	}
	best := s.dive(s.left, pool, s.tempting, math.Inf(1))
	if best == nil {
		best = s.rest(s.left, s.tempting)
	}
	for _, p := range best {
		s.buy(p)
	}
}

// sumOf returns the total cost of bins.
func sumOf(bins []*pattern) (sum float64) {
	for _, b := range bins {
		sum += b.price
	}
	return sum
}

// buy buys a bin, unless the kind is exhausted or a limit forbids it.
func (s *search) buy(p *pattern) {
	if s.allows(p.bin) {
		s.count(p, 1)
		s.bins = append(s.bins, p)
	}
}

// allows reports whether one more bin of the kind may be bought, given its maximum number and the
// limits.
func (s *search) allows(bin int) bool {
	if b := &s.p.Bins[bin]; b.Most > 0 && s.used[bin] >= b.Most {
		return false
	}
	return !slices.ContainsFunc(s.costs[bin], func(c cost) bool { return s.spent[c.limit]+c.amount > s.p.Limits[c.limit].Most })
}

// count counts a bought bin if n is 1, or a returned bin if n is -1. It does not change s.bins.
func (s *search) count(p *pattern, n int) {
	s.used[p.bin] += n
	for _, c := range s.costs[p.bin] {
		s.spent[c.limit] += c.amount * int64(n)
	}
	for _, part := range p.parts {
		s.left[part.Item] -= part.Count * n
	}
}

// rest packs all remaining things and returns the bins without buying them. It repeatedly takes the
// filling with the highest ratio of worth to price. After each step it computes the cost of
// finishing with one more bin, and in the end returns the cheapest of these solutions. It is greedy
// and fast; dive is better but slow. It leaves out things that fit no purchasable bin.
func (s *search) rest(left []int, bins []int) []*pattern {
	left = slices.Clone(left)
	defer s.try()()
	var taken, done []*pattern
	cost, least := 0.0, math.Inf(1)

	for slices.Max(left) > 0 {
		if last := s.last(left); last != nil && cost+last.price < least {
			least = cost + last.price
			done = append(slices.Clone(taken), last)
		}
		best := s.best(left, bins)
		if best == nil {
			// None of the preferred bins that may be bought takes any of the remaining things.
			if best = s.best(left, s.useful); best == nil {
				break
			}
		}
		taken = append(taken, best)
		if cost += best.price; cost >= least {
			return done
		}
		s.countOff(best, left)
	}

	if done != nil && (least <= cost || slices.Max(left) > 0) {
		return done
	}
	return taken
}

// best returns the filling of the bins with the highest ratio of worth to price. It
// compares ratios by products, so a free bin is better than any other.
func (s *search) best(left []int, bins []int) (best *pattern) {
	for _, bin := range bins {
		if !s.allows(bin) {
			continue
		}
		if f := s.f.fill(bin, s.values, left); f != nil && (best == nil || f.value*best.price > best.value*f.price) {
			best = f
		}
	}
	return best
}

// last returns the cheapest bin that takes all remaining things, or nil.
func (s *search) last(left []int) *pattern {
	var parts []Part
	for i, n := range left {
		if n > 0 {
			parts = append(parts, Part{i, n})
		}
	}

	total := s.p.total(parts)
	for _, bin := range s.useful { // by price
		b := &s.p.Bins[bin]
		// The sum is a cheap test that most bins fail.
		if Holds(b.Room, total) && s.allows(bin) && s.takesAll(bin, parts) {
			return &pattern{bin: bin, price: b.Price, parts: parts}
		}
	}
	return nil
}

// total returns the total size of the parts.
func (p *Problem) total(parts []Part) []int64 {
	sum := make([]int64, len(p.Bins[0].Room))
	for _, part := range parts {
		for r, size := range p.Items[part.Item].Size {
			sum[r] += size * int64(part.Count)
		}
	}
	return sum
}

// takesAll reports whether a bin takes all of the parts together. It uses the filler's scratch
// space.
func (s *search) takesAll(bin int, parts []Part) bool {
	s.f.empty(bin)
	for _, part := range parts {
		if !s.f.mayTake(bin, part.Item) || s.f.most(part.Item, part.Count) < part.Count {
			return false
		}
		s.f.take(part.Item, part.Count)
	}
	return true
}

// improve repeatedly empties a few bins and repacks their contents, keeping any cheaper result. It
// prefers bins with a low worth for their price.
//
// It is a large-neighbourhood search: a few bins can be packed well, and still leave a choice of
// packings. While there are few bins, every fourth turn empties more of them and repacks them with
// the better but slower dive. It ends after Rounds turns, or when its work is used up.
func (s *search) improve() {
	for i, b := range s.bins {
		// Rounding leaves bins half empty, so a smaller bin is often enough.
		if cheaper := s.fitted(b); cheaper != b {
			s.count(b, -1)
			s.bins[i] = cheaper
			s.count(cheaper, 1)
		}
	}

	random := rand.New(rand.NewPCG(s.options.Seed, 1))
	until := s.f.work + improvingWork
	for turn := range s.options.Rounds {
		if s.f.work > until || len(s.bins) < 2 {
			return
		}
		many, dive := 2+random.IntN(5), turn%4 == 3 && len(s.bins) < 64
		if dive {
			many = 6 + random.IntN(10)
		}
		s.repack(s.choose(random, many), dive)
	}
}

// repack empties the bins at the positions and repacks their contents. It keeps a cheaper result,
// and otherwise restores everything.
func (s *search) repack(out []int, dive bool) {
	var pool []*pattern
	for _, at := range out {
		s.count(s.bins[at], -1)
		pool = append(pool, s.bins[at])
	}

	var again []*pattern
	before := sumOf(pool)
	if dive {
		again = s.dive(s.left, pool, s.some, before)
	} else {
		again = s.rest(s.left, s.tempting)
	}
	for i, b := range again {
		again[i] = s.fitted(b)
	}

	// Equal cost is no gain: accepting it would lead to cycles.
	if sumOf(again) < before*(1-1e-9) && s.packs(again) {
		for _, at := range slices.Backward(out) {
			s.bins = slices.Delete(s.bins, at, at+1)
		}
		for _, b := range again {
			s.buy(b)
		}
		return
	}
	for _, at := range out {
		s.count(s.bins[at], 1)
	}
}

// packs reports whether the bins hold all remaining things, and may be bought. It changes nothing.
func (s *search) packs(bins []*pattern) bool {
	left := slices.Clone(s.left)
	defer s.try()()
	for _, b := range bins {
		if !s.allows(b.bin) {
			return false
		}
		s.countOff(b, left)
	}
	return !slices.ContainsFunc(left, func(n int) bool { return n != 0 })
}

// fitted returns the pattern in the cheapest bin that holds it, or else the pattern itself.
func (s *search) fitted(b *pattern) *pattern {
	need := s.p.total(b.parts)
	for _, bin := range s.useful { // by price
		if s.p.Bins[bin].Price >= b.price {
			break
		}
		if Holds(s.p.Bins[bin].Room, need) && s.allows(bin) && s.takes(bin, b.parts) {
			return &pattern{bin: bin, price: s.p.Bins[bin].Price, parts: b.parts, value: b.value}
		}
	}
	return b
}

// takes reports whether a bin permits all parts, regardless of room.
func (s *search) takes(bin int, parts []Part) bool {
	return !slices.ContainsFunc(parts, func(part Part) bool { return !s.f.mayTake(bin, part.Item) })
}

// choose returns the positions of some bins, in order. It considers a sample of the bins, and
// varies worth by a tenth, so that its choices differ. It may return fewer than requested.
func (s *search) choose(random *rand.Rand, many int) []int {
	type poor struct {
		at    int
		worth float64
	}
	const most = 64 // number of examined bins
	var list []poor
	for range min(most, len(s.bins)) {
		at := random.IntN(len(s.bins))
		list = append(list, poor{at, s.bins[at].worth(s.values) / (s.bins[at].price + tiny) * (0.9 + 0.2*random.Float64())})
	}
	slices.SortFunc(list, func(a, b poor) int { return cmp.Compare(a.worth, b.worth) })
	list = list[:min(len(list), many)]
	var out []int
	for _, p := range list {
		out = append(out, p.at)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
