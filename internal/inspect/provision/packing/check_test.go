// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"math"
	"slices"
)

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
