// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"math"
	"slices"
)

// Problem describes the things to pack and the available bins.
//
// All Size and Room slices have the same resources in the same order. Sizes, rooms, prices and
// costs are not negative. Solving a problem does not modify it.
//
//	Items: 6 pods of 2 CPU, 4 pods of 3 CPU;  Bins: 4 CPU for 10, 8 CPU for 18
//	-> 3 bins of 8 CPU for 54: 2+3+3, 2+3+3 and 2+2+2+2. Bins of 4 CPU alone: 7 for 70.
type Problem struct {
	Items []Item
	Bins  []Bin
	// Limits bound the total of all purchases, like the limits of a node pool.
	Limits []Limit
	// Apart lists groups of items with a maximum number per bin.
	Apart []Apart
}

// Item is a number of identical things. Bins may include bins too small for a single thing.
type Item struct {
	Size  []int64 // by resource
	Count int
	// Bins are the permitted kinds of bins: indexes of Problem.Bins, sorted.
	Bins []int
}

// Bin is a kind of bin, available in any number up to Most.
type Bin struct {
	Room  []int64 // by resource
	Price float64
	// Most is the available number; 0 means unlimited.
	Most int
}

// Limit bounds the sum of the bins' costs in some resource. Bins missing in Costs use none of it.
// If Most is 0 or negative, no bin with a cost can be bought.
type Limit struct {
	Costs map[int]int64 // by bin: the part of the limit used by one bin
	Most  int64
}

// Apart is a group of items of which a bin may hold no more than Most things. A thing may be in
// several groups. Most = 1 models host port conflicts and anti-affinity by hostname.
type Apart struct {
	Items []int
	Most  int
}

// Bought is a bin with its contents.
type Bought struct {
	Bin   int
	Items []Part
}

// Part is the number of things of an item in a bin.
type Part struct{ Item, Count int }

// Solution is the list of purchases. Bound is proved independently of the search for Bins.
type Solution struct {
	Bins []Bought
	Cost float64
	// Left is the number of unpacked things of each item: no bin takes them, or limits are reached.
	Left []int
	// Bound is a proven lower bound on the cost of any bins that hold the packed things. Exact
	// means that no cheaper solution exists.
	Bound float64
	Exact bool
}

// Check returns an error if the solution does not solve the problem.
//
// It shares only types with the search, so it does not inherit the search's bugs.
func (s *Solution) Check(p *Problem) error {
	counts := slices.Clone(s.Left)
	used := make([]int, len(p.Bins))
	cost := 0.0
	for at, b := range s.Bins {
		used[b.Bin]++
		cost += p.Bins[b.Bin].Price
		room := slices.Clone(p.Bins[b.Bin].Room)
		for _, part := range b.Items {
			item := &p.Items[part.Item]
			if !slices.Contains(item.Bins, b.Bin) {
				return fmt.Errorf("bin %d of kind %d has item %d, which may not go there", at, b.Bin, part.Item)
			}
			counts[part.Item] += part.Count
			for r, size := range item.Size {
				room[r] -= size * int64(part.Count)
			}
		}
		for r, left := range room {
			if left < 0 {
				return fmt.Errorf("bin %d of kind %d is overfull by %d of resource %d", at, b.Bin, -left, r)
			}
		}
		for g, apart := range p.Apart {
			if n := b.count(apart.Items); n > apart.Most {
				return fmt.Errorf("bin %d has %d things of group %d, where %d may be together", at, n, g, apart.Most)
			}
		}
	}

	for i, item := range p.Items {
		if counts[i] != item.Count {
			return fmt.Errorf("item %d: %d things in bins or left, of %d", i, counts[i], item.Count)
		}
	}

	for i, bin := range p.Bins {
		if bin.Most > 0 && used[i] > bin.Most {
			return fmt.Errorf("%d bins of kind %d, of which there are %d", used[i], i, bin.Most)
		}
	}

	for i, limit := range p.Limits {
		sum := int64(0)
		for bin, n := range used {
			sum += limit.Costs[bin] * int64(n)
		}
		if sum > limit.Most {
			return fmt.Errorf("limit %d: %d of %d", i, sum, limit.Most)
		}
	}

	if math.Abs(cost-s.Cost) > 1e-6*(1+cost) {
		return fmt.Errorf("the bins cost %g, not %g", cost, s.Cost)
	}
	if s.Bound > s.Cost*(1+1e-9)+1e-9 {
		return fmt.Errorf("bound %g above the cost, %g", s.Bound, s.Cost)
	}
	return nil
}

// count returns the number of things of these items in the bin.
func (b *Bought) count(items []int) (n int) {
	for _, part := range b.Items {
		if slices.Contains(items, part.Item) {
			n += part.Count
		}
	}
	return n
}
