package packing

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// dive packs all that is left, and returns the bins without buying them. It solves the linear
// program, buys the whole bins of which the program buys most, and solves it again for what is left
// then. After each step it sees what it would cost to be done with one more bin, and in the end
// returns the cheapest of these ways. It returns nil if it costs as much as enough, or if limits
// keep it from packing all.
//
// Each solution of the program is for fewer things, and so closer to whole bins: rounding once at
// the beginning would leave far more for a poor end. pool has the patterns to begin with, bins
// those that are asked for more. The search is as before when it returns.
func (s *search) dive(left []int, pool []*pattern, bins []int, enough float64) []*pattern {
	left = slices.Clone(left)
	used, spent := s.used, s.spent
	s.used, s.spent = slices.Clone(used), slices.Clone(spent)
	defer func() { s.used, s.spent = used, spent }()

	var taken, done []*pattern
	cost := 0.0
	for slices.Max(left) > 0 {
		// What is left may go into one bin at any step; the cheapest such end is kept, not the
		// last.
		if last := s.last(left); last != nil && cost+last.price < enough {
			enough = cost + last.price
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
			// If the program buys nothing whole, something has to be rounded up: the largest
			// amounts, a few at a time.
			if whole == 0 && (at > len(bought)/atOnce || at > 0 && w.amount < 0.5) {
				break
			}
			for range max(whole, 1) {
				f := w.pattern.trimmed(left)
				// A pattern that no longer has all of its things would fill a bin badly, but as the
				// first of a step it is better than none.
				if f == nil || !s.allows(f.bin) || whole == 0 && len(f.parts) < len(w.pattern.parts) && len(taken) > before {
					break
				}
				taken = append(taken, f)
				cost += f.price
				s.countOff(f, left)
			}
		}
		if len(taken) == before || cost >= enough {
			return done
		}
	}

	if cost < enough {
		return taken
	}
	return done
}

// countOff takes what is in a bin from what is left, and the bin from what may be bought. left is
// the caller's, not the search's.
func (s *search) countOff(f *pattern, left []int) {
	s.used[f.bin]++
	for i, l := range s.p.Limits {
		s.spent[i] += l.Costs[f.bin]
	}
	for _, part := range f.parts {
		left[part.Item] -= part.Count
	}
}

// trimmed returns the pattern with no more than is left; nil if that is nothing. It is the pattern
// itself if nothing has to be taken out.
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

// rough packs all that is left by values, each filling as often as half of what is left of its
// things allows: patterns to begin with, since together they have everything. Values are varied by
// a tenth, so that the patterns differ. It is fast, for problems in which complete solutions take
// too long.
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
