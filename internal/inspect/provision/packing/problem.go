// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

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

// Separate adds an item to the group of things of which a bin holds at most one. groups has the
// index of each group in Apart.
func (p *Problem) Separate(item int, group string, groups map[string]int) {
	g, known := groups[group]
	if !known {
		g = len(p.Apart)
		groups[group] = g
		p.Apart = append(p.Apart, Apart{Most: 1})
	}
	p.Apart[g].Items = append(p.Apart[g].Items, item)
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
