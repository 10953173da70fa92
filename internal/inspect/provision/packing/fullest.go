// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"math"
	"slices"
)

// fullest searches for the most valuable filling of one bin. It takes as many things as fit of the
// item with the highest value per size, then one less, and so on, and prunes branches that cannot
// exceed the best filling so far.
//
// The upper limit for a filling is its value if things could be cut in pieces and only one resource
// existed, the weighted sum of all resources. It is valid for any weights; weigh looks for good
// ones. A bin holds few things of a group, regardless of its room. To account for that, each thing
// of a group is charged, and as many charges are added back as the bin may hold things of the
// group.
//
//	two things worth 6 each, of a group limited to one per bin: the maximum is 6
//	without charges        6 + 6      = 12
//	each is charged 2      4 + 4 + 2  = 10
//	each is charged 6      0 + 0 + 6  = 6
//
// A filler owns one fullest and reuses it for all searches.
type fullest struct {
	f   *filler
	bin int
	// charges holds, by group, the charge for each of its things.
	list    []stuff // by value per share, after charges
	charges []float64
	counts  []int // by position in list: the number taken
	best    []int
	most    float64 // value of the best filling
	open    float64 // upper limit on the value of unexamined fillings
	steps   int     // remaining steps
}

// stuff is an item that may go into the bin.
type stuff struct {
	item         int
	share        float64 // share of the weighted room, which is 1
	worth, value float64 // value of one thing after and before charges
	left         int
}

// fillBest returns the best filling found for a bin, and an upper limit on the value of any
// filling. It stops if no filling can exceed target, and after the given number of steps.
//
// The second result is valid whether or not the pattern is the best: an interrupted search includes
// the limits of the branches left open. Callers interested only in fillings above a value, such as
// the price of a bin, pass it as target.
func (f *filler) fillBest(bin int, values []float64, left []int, target float64, steps int) (*pattern, float64) {
	k := &f.search
	k.f, k.bin, k.steps = f, bin, steps
	ceiling := k.weigh(values, left, target)
	if ceiling <= target || steps == 0 {
		return nil, ceiling
	}

	k.most, k.open = target, 0
	k.counts = append(k.counts[:0], make([]int, len(k.list))...)
	k.best = k.best[:0]
	f.empty(bin)
	k.try(0, 0, 1)
	f.work += (steps - k.steps) * 4
	if len(k.best) == 0 {
		return nil, min(max(k.open, k.most), ceiling)
	}

	for at, n := range k.best {
		if n > 0 {
			f.parts = append(f.parts, Part{k.list[at].item, n})
		}
	}
	return f.made(bin, k.most), min(max(k.open, k.most), ceiling)
}

// try examines all fillings that add things of list[at:] to the things taken so far. spare is the
// remaining weighted room. k.f.room and k.f.spare reflect the taken things; try restores them.
func (k *fullest) try(at int, value, spare float64) {
	if value > k.most*(1+tiny) {
		k.most = value
		k.best = append(k.best[:0], k.counts...)
	}
	limit := value + k.divisible(at, spare)
	if limit <= k.most*(1+tiny) {
		return
	}
	// A branch pruned here could still have reached limit.
	if k.steps--; k.steps < 0 {
		k.open = max(k.open, limit)
		return
	}

	for at < len(k.list) && k.f.most(k.list[at].item, k.list[at].left) == 0 {
		at++
	}
	if at == len(k.list) {
		return
	}

	s := &k.list[at]
	n := k.f.most(s.item, s.left)
	k.f.take(s.item, n)
	// Try fillings with many things of the best item first: the sooner a good filling is found, the
	// more branches are pruned.
	for ; n >= 0; n-- {
		k.counts[at] = n
		k.try(at+1, value+float64(n)*s.value, spare-float64(n)*s.share)
		if n > 0 {
			k.f.take(s.item, -1)
		}
	}
	k.counts[at] = 0
}

// divisible returns the maximum value of things of list[at:] in the spare room, if they could be
// cut in pieces. It limits all fillings that extend the current one. It is the sum of the charges
// for all things that the groups may still take, and of the values after charges of the things that
// fit, in the order of list.
func (k *fullest) divisible(at int, spare float64) (value float64) {
	for g, charge := range k.charges {
		value += charge * float64(k.f.spare[g])
	}
	for _, s := range k.list[at:] {
		n := float64(s.left)
		if need := n * s.share; need > spare {
			return value + spare/s.share*s.worth
		} else {
			spare -= need
		}
		value += n * s.worth
	}
	return value
}

// weigh looks for charges, and for weights of the resources, that make the divisible filling worth
// little, and returns its value. It stops once that value is at most target. On return, the best
// weights and charges are in place.
func (k *fullest) weigh(values []float64, left []int, target float64) float64 {
	least := k.balance(k.charge(values, left, -1), values, left, target)
	if least <= target || len(k.f.p.Apart) == 0 {
		return least
	}

	best := -1.0
	for _, part := range []float64{0.3, 0.5, 0.7, 0.85, 1} {
		if value := k.balance(k.charge(values, left, part), values, left, target); value < least {
			least, best = value, part
			if least <= target {
				return least
			}
		}
	}
	return k.balance(k.charge(values, left, best), values, left, target)
}

// balance looks for the weights in shrinking steps: a weight grows if its resource is overfull.
func (k *fullest) balance(charged, values []float64, left []int, target float64) float64 {
	f, room := k.f, k.f.p.Bins[k.bin].Room
	copy(f.spare, f.spares)
	for r := range f.weight {
		f.weight[r] = 1 / float64(len(f.weight))
	}

	least := math.Inf(1)
	use, chosen := f.full, f.chosen
	for step := 0.7; step > 0.05; step *= 0.88 {
		k.line(charged, values, left)
		if value := k.divisible(0, 1); value < least {
			least = value
			copy(chosen, f.weight)
			if least <= target {
				return least
			}
		}

		// A resource becomes more expensive if the filling needs more of it than available.
		clear(use)
		spare, total := 1.0, 0.0
		for _, s := range k.list {
			n := float64(s.left)
			if s.share > 0 {
				n = min(n, spare/s.share)
			}
			spare -= n * s.share
			for r, size := range f.p.Items[s.item].Size {
				if size > 0 {
					use[r] += n * float64(size) / float64(room[r])
				}
			}
			if spare <= 0 {
				break
			}
		}
		for r := range f.weight {
			f.weight[r] *= math.Exp(step * (use[r] - 1))
			total += f.weight[r]
		}
		for r := range f.weight {
			f.weight[r] /= total
		}
	}

	copy(f.weight, chosen)
	k.line(charged, values, left)
	return least
}

// line lists the items that may go into the bin, by descending value per share, after charges.
func (k *fullest) line(charged, values []float64, left []int) {
	f, room := k.f, k.f.p.Bins[k.bin].Room
	k.list = k.list[:0]
	f.work += len(f.items[k.bin])
	for _, i := range f.items[k.bin] {
		if left[i] == 0 || values[i] <= 0 {
			continue
		}
		share := 0.0
		for r, size := range f.p.Items[i].Size {
			if size > 0 {
				share += f.weight[r] * float64(size) / float64(room[r])
			}
		}
		k.list = append(k.list, stuff{i, share, charged[i], values[i], left[i]})
	}
	slices.SortFunc(k.list, func(a, b stuff) int {
		return cmp.Or(cmp.Compare(b.worth*a.share, a.worth*b.share), cmp.Compare(a.item, b.item))
	})
}

// charge sets the charges of groups and returns the values after charges. A group's charge is the
// given part of the lowest value among its things. If part is negative, the charge is the lowest
// excess of a thing's value over the value of ungrouped things of the same size. The limit is valid
// for any charge. A thing of two groups is charged for both, but its value never drops below 0.
func (k *fullest) charge(values []float64, left []int, part float64) []float64 {
	f := k.f
	k.charges = append(k.charges[:0], make([]float64, len(f.p.Apart))...)
	if len(f.p.Apart) == 0 {
		return values
	}

	charged := slices.Clone(values)
	usual := f.usual(k.bin, values, left)
	for g, apart := range f.p.Apart {
		charge := math.Inf(1)
		for _, i := range apart.Items {
			if left[i] == 0 || charged[i] <= 0 {
				continue
			}
			if part < 0 {
				charge = min(charge, max(charged[i]-usual*f.share(i), 0))
			} else {
				charge = min(charge, part*charged[i])
			}
		}
		if math.IsInf(charge, 1) {
			continue
		}
		for _, i := range apart.Items {
			charged[i] = max(charged[i]-charge, 0)
		}
		k.charges[g] = charge
	}
	return charged
}
