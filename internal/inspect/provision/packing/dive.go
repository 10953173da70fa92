// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// dive packs all remaining things and returns the bins without buying them. It repeatedly solves
// the linear program, buys the whole bins with the largest amounts in the program, and continues
// with the rest. Before each step it computes the cost of finishing with one more bin, and in the
// end returns the cheapest of these solutions. It returns nil if none costs less than limit, or if
// limits prevent packing everything.
//
// Rounding only once, at the beginning, would leave far more things to be packed poorly. pool holds
// the initial patterns, and bins holds the bins searched for more patterns. dive restores the state
// of the search when it returns.
func (s *search) dive(left []int, pool []*pattern, bins []int, limit float64) []*pattern {
	left = slices.Clone(left)
	defer s.try()()

	var taken, done []*pattern
	cost := 0.0
	for slices.Max(left) > 0 {
		// The remaining things may fit into one bin at any step. Keep the cheapest of these
		// solutions, not the last.
		if last := s.last(left); last != nil && cost+last.price < limit {
			limit = cost + last.price
			done = append(slices.Clone(taken), last)
		}
		p := s.newProgram(left)
		fits := pool[:0:0]
		for _, f := range pool {
			if f = f.trimmed(left); f != nil {
				fits = append(fits, f)
			}
		}
		p.settle(fits)
		p.improve(bins, nil, divingWork)

		bought := p.bought()
		slices.SortStableFunc(bought, func(a, b weighted) int { return cmp.Compare(b.amount, a.amount) })
		pool = pool[:0:0]
		for _, w := range bought {
			pool = append(pool, w.pattern)
		}

		before := len(taken)
		for at, w := range bought {
			whole := int(w.amount + 1e-6)
			// If the program buys no whole bin, round up the largest amounts, a few at a time.
			if whole == 0 && (at > len(bought)/atOnce || at > 0 && w.amount < 0.5) {
				break
			}
			for range max(whole, 1) {
				f := w.pattern.trimmed(left)
				// A pattern trimmed to the remaining things would fill a bin badly, but as the
				// first pattern of a step it is better than none.
				if f == nil || !s.allows(f.bin) || whole == 0 && len(f.parts) < len(w.pattern.parts) && len(taken) > before {
					break
				}
				taken = append(taken, f)
				cost += f.price
				s.countOff(f, left)
			}
		}
		if len(taken) == before || cost >= limit {
			return done
		}
	}

	if cost < limit {
		return taken
	}
	return done
}

// try begins a trial, in which countOff may count bins. restore ends it, and reverts the counts.
func (s *search) try() (restore func()) {
	used, spent := s.used, s.spent
	s.used, s.spent = slices.Clone(used), slices.Clone(spent)
	return func() { s.used, s.spent = used, spent }
}

// countOff subtracts a bin's contents from the numbers in left, and counts the bin as used. left
// belongs to the caller, not to the search.
func (s *search) countOff(f *pattern, left []int) {
	s.used[f.bin]++
	for _, c := range s.costs[f.bin] {
		s.spent[c.limit] += c.amount
	}
	for _, part := range f.parts {
		left[part.Item] -= part.Count
	}
}

// trimmed returns the pattern reduced to the remaining things, or nil if it becomes empty. It
// returns the pattern itself if nothing needs removing.
func (p *pattern) trimmed(left []int) *pattern {
	if !slices.ContainsFunc(p.parts, func(part Part) bool { return part.Count > left[part.Item] }) {
		return p
	}
	t := &pattern{bin: p.bin, price: p.price}
	for _, part := range p.parts {
		if n := min(part.Count, left[part.Item]); n > 0 {
			t.parts = append(t.parts, Part{part.Item, n})
		}
	}
	if len(t.parts) == 0 {
		return nil
	}
	return t
}

// rough packs all remaining things by value, repeating each filling half as often as the remaining
// things allow. The results serve as initial patterns, because together they contain things of
// every item. Values are varied by a tenth to make the patterns differ. It is fast, for problems
// too large for complete solutions.
func (s *search) rough(values []float64) (list []*pattern) {
	left := slices.Clone(s.left)
	random := rand.New(rand.NewPCG(s.options.Seed, 3))
	noisy := make([]float64, len(values))
	for slices.Max(left) > 0 {
		for i, v := range values {
			noisy[i] = v * (0.9 + 0.2*random.Float64())
		}
		var best *pattern
		for range min(someBins, len(s.some)) {
			bin := s.some[random.IntN(len(s.some))]
			if f := s.f.fill(bin, noisy, left); f != nil && (best == nil || f.value*best.price > best.value*f.price) {
				best = f
			}
		}
		if best == nil {
			break
		}

		list = append(list, s.fitted(best))
		times := math.MaxInt
		for _, part := range best.parts {
			times = min(times, left[part.Item]/part.Count)
		}
		for _, part := range best.parts {
			left[part.Item] -= part.Count * max(1, times/2)
		}
	}
	return list
}
