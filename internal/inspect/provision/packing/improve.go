package packing

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// improve empties a few bins and packs what they had anew, again and again, and keeps what became
// cheaper. Which bins: those that are worth least for their price more often than others.
func (s *search) improve() {
	for i, b := range s.bins {
		if cheaper := s.exchange(b); cheaper != nil {
			s.count(b, -1)
			s.bins[i] = cheaper
			s.count(cheaper, 1)
		}
	}

	random := rand.New(rand.NewPCG(s.options.Seed, 1))
	bins := s.tempting()
	until := s.f.work + improvingWork
	for range s.options.Rounds {
		if s.f.work > until {
			return
		}
		if len(s.bins) < 2 {
			return
		}
		out := s.choose(random)
		before := 0.0
		for _, at := range out {
			s.count(s.bins[at], -1)
			before += s.bins[at].price
		}
		again := s.rest(s.left, bins)
		after := 0.0
		for i, b := range again {
			if cheaper := s.exchange(b); cheaper != nil {
				again[i] = cheaper
			}
			after += again[i].price
		}
		if after < before*(1-1e-9) && s.packs(again) {
			s.bins = without(s.bins, out)
			for _, b := range again {
				s.buy(b)
			}
			continue
		}
		for _, at := range out {
			s.count(s.bins[at], 1)
		}
	}
}

// packs reports whether the bins have all that is left now, and may be bought.
func (s *search) packs(bins []*pattern) bool {
	left := slices.Clone(s.left)
	for _, b := range bins {
		for _, part := range b.parts {
			left[part.Item] -= part.Count
		}
	}

	if slices.ContainsFunc(left, func(n int) bool { return n != 0 }) {
		return false
	}
	bought := 0
	defer func() {
		for _, b := range bins[:bought] {
			s.count(b, -1)
		}
	}()

	for _, b := range bins {
		if !s.allows(b.bin) {
			return false
		}
		s.count(b, 1)
		bought++
	}
	return true
}

// exchange returns the cheapest bin for what a bin has, or nil if it is that already.
func (s *search) exchange(b *pattern) *pattern {
	counts := make([]int, len(s.p.Items))
	for _, part := range b.parts {
		counts[part.Item] = part.Count
	}
	if last := s.last(counts); last != nil && last.price < b.price {
		return last
	}
	return nil
}

// choose returns the positions of some bins, in order.
func (s *search) choose(random *rand.Rand) []int {
	type poor struct {
		at    int
		worth float64
	}
	const most = 64 // are looked at
	var list []poor
	for range min(most, len(s.bins)) {
		at := random.IntN(len(s.bins))
		worth := 0.0
		for _, part := range s.bins[at].parts {
			worth += s.values[part.Item] * float64(part.Count)
		}
		list = append(list, poor{at, worth / (s.bins[at].price + tiny) * (0.9 + 0.2*random.Float64())})
	}
	slices.SortFunc(list, func(a, b poor) int { return cmp.Compare(a.worth, b.worth) })
	list = list[:min(len(list), 2+random.IntN(5))]
	var out []int
	for _, p := range list {
		out = append(out, p.at)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// without returns the bins but for those at the positions, which are in order.
func without(bins []*pattern, out []int) []*pattern {
	var list []*pattern
	for at, b := range bins {
		if _, gone := slices.BinarySearch(out, at); !gone {
			list = append(list, b)
		}
	}
	return list
}
