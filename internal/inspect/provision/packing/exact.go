// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"math"
	"math/bits"
)

// exact finds the optimum for few things: the cheapest bin for each set of them, and from these the
// cheapest partition into sets. It does nothing if the number of bins is limited, because the costs
// of sets ignore that.
//
// It enumerates all sets of things as bits: 11 things have 2,048 sets, and 3^11 = 177,147 pairs of
// a set and a part of it. Parts containing the set's lowest thing suffice, because some bin holds
// it.
func (s *search) exact() {
	for _, b := range s.p.Bins {
		if b.Most > 0 {
			return
		}
	}
	if len(s.p.Limits) > 0 {
		return
	}
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
