// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// improve repeatedly empties a few bins and repacks their contents, keeping any cheaper result. It
// prefers bins with a low worth for their price.
//
// It is a large-neighbourhood search: a few bins can be packed well, and still leave a choice of
// packings. While there are few bins, every fourth turn empties more of them and repacks them with
// the better but slower dive. It ends after Rounds turns, or when its work is used up.
func (s *search) improve() {
	for i, b := range s.bins {
		// Rounding leaves bins half empty, so a smaller bin is often enough.
		if cheaper := s.exchange(b); cheaper != nil {
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
	before := 0.0
	var pool []*pattern
	for _, at := range out {
		s.count(s.bins[at], -1)
		before += s.bins[at].price
		pool = append(pool, s.bins[at])
	}

	var again []*pattern
	if dive {
		again = s.dive(s.left, pool, s.some, before)
	} else {
		again = s.rest(s.left, s.tempting)
	}
	after := 0.0
	for i, b := range again {
		again[i] = s.fitted(b)
		after += again[i].price
	}

	// Equal cost is no gain: accepting it would lead to cycles.
	if after < before*(1-1e-9) && s.packs(again) {
		s.bins = without(s.bins, out)
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

// exchange returns the cheapest bin for a bin's contents, or nil if it already is the cheapest.
func (s *search) exchange(b *pattern) *pattern {
	if f := s.fitted(b); f != b {
		return f
	}
	return nil
}

// fitted returns the pattern in the cheapest bin that holds it, or else the pattern itself.
func (s *search) fitted(b *pattern) *pattern {
	need := make([]int64, len(s.f.room))
	for _, part := range b.parts {
		for r, size := range s.p.Items[part.Item].Size {
			need[r] += size * int64(part.Count)
		}
	}
	for _, bin := range s.useful { // by price
		if s.p.Bins[bin].Price >= b.price {
			break
		}
		if holds(s.p.Bins[bin].Room, need) && s.allows(bin) && s.takes(bin, b.parts) {
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
		worth := 0.0
		for _, part := range s.bins[at].parts {
			worth += s.values[part.Item] * float64(part.Count)
		}
		list = append(list, poor{at, worth / (s.bins[at].price + tiny) * (0.9 + 0.2*random.Float64())})
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

// without returns the bins except those at the positions, given in order.
func without(bins []*pattern, out []int) []*pattern {
	var list []*pattern
	for at, b := range bins {
		if _, gone := slices.BinarySearch(out, at); !gone {
			list = append(list, b)
		}
	}
	return list
}
