package packing

import (
	"fmt"
	"math"
	"slices"
)

// Problem is what to pack, and what into.
//
// All sizes, rooms and costs have the same resources in the same order, and are not negative. A
// problem is not changed by solving it.
//
//	Items: 6 pods of 2 CPU, 4 pods of 3 CPU;  Bins: 4 CPU for 10, 8 CPU for 18
//	-> 3 bins of 8 CPU for 54: 2+3+3, 2+3+3 and 2+2+2+2. Six bins of 4 CPU would cost 60.
type Problem struct {
	Items []Item
	Bins  []Bin
	// Limits bound what is bought altogether, as the limits of a node pool do.
	Limits []Limit
	// Apart lists groups of items of which a bin holds a few at most.
	Apart []Apart
}

// Item is a number of things that are alike. Bins without room for a single one may be listed; they
// take none.
type Item struct {
	Size  []int64 // by resource
	Count int
	// Bins are the kinds of bins into which it may go: indexes of Problem.Bins, sorted.
	Bins []int
}

// Bin is a kind of bin of which any number can be bought.
type Bin struct {
	Room  []int64 // by resource
	Price float64
	// Most is how many there are; 0 means any number.
	Most int
}

// Limit bounds the sum of what the bins cost in some resource. Bins that are not in Costs take
// nothing of it. Most may be 0 or below: then no bin with a cost can be bought.
type Limit struct {
	Costs map[int]int64 // by bin: how much of the limit one takes
	Most  int64
}

// Apart is a group of which a bin holds no more than Most things. A thing may be in several groups.
// Most 1 is what host ports and anti-affinity by node need.
type Apart struct {
	Items []int
	Most  int
}

// Bought is a bin with what goes into it.
type Bought struct {
	Bin   int
	Items []Part
}

// Part is how many things of an item are in a bin.
type Part struct{ Item, Count int }

// Solution is what to buy.
//
// Bound is a proof that does not depend on how Bins were found.
type Solution struct {
	Bins []Bought
	Cost float64
	// Left is how many things of each item go nowhere: no bin takes them, or limits are reached.
	Left []int
	// Bound is what the bins cost at least into which all that is not left goes. Exact means that
	// nothing cheaper exists.
	Bound float64
	Exact bool
}

// Check returns an error if the solution is none of the problem: it is how tests, and a command
// before it prints, make sure of it.
//
// It shares nothing with the search but the types, so that a fault there does not hide itself.
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

// count is how many things of these items are in the bin.
func (b *Bought) count(items []int) (n int) {
	for _, part := range b.Items {
		if slices.Contains(items, part.Item) {
			n += part.Count
		}
	}
	return n
}
