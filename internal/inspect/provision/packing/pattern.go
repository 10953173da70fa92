// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"math"
	"slices"
)

// pattern is one bin with its contents. parts are sorted by item, with counts above 0. A pattern is
// shared and never modified.
type pattern struct {
	bin   int
	price float64
	parts []Part
	value float64 // value of the contents when the pattern was made
}

// filler fills bins by value. It holds the items that each kind of bin may take.
//
// All fills reuse the same few slices, so a filler is for one goroutine; twin creates another one.
// work counts the candidates examined, and serves as the clock of the search.
type filler struct {
	p      *Problem
	items  [][]int // by bin
	groups [][]int // by item: its groups
	may    []bool  // by item and bin: whether the bin permits the item
	// Scratch space of one fill.
	room         []int64
	full, weight []float64
	order        []candidate
	spare        []int // by group: the remaining capacity of the bin
	spares       []int // spare of an empty bin
	chosen       []float64
	parts        []Part
	search       fullest
	work         int // number of examined candidates
}

// candidate is an item that may go into the bin being filled.
type candidate struct {
	item    int
	density float64
	taken   int
	done    bool // no more of it fits
}

// newFiller precomputes for all fills the items that are permitted and fit in each bin.
func newFiller(p *Problem) *filler {
	f := &filler{p: p, items: make([][]int, len(p.Bins)), groups: make([][]int, len(p.Items)), spare: make([]int, len(p.Apart))}
	f.may = make([]bool, len(p.Items)*len(p.Bins))
	for i := range p.Items {
		for _, bin := range p.Items[i].Bins {
			f.may[i*len(p.Bins)+bin] = true
			if p.holds(bin, i) {
				f.items[bin] = append(f.items[bin], i)
			}
		}
	}

	for g, apart := range p.Apart {
		f.spares = append(f.spares, apart.Most)
		for _, i := range apart.Items {
			f.groups[i] = append(f.groups[i], g)
		}
	}

	resources := 0
	if len(p.Bins) > 0 {
		resources = len(p.Bins[0].Room)
	}

	f.room, f.full = make([]int64, resources), make([]float64, resources)
	f.weight, f.chosen = make([]float64, resources), make([]float64, resources)
	return f
}

// twin returns a filler of the same problem for concurrent use. Shared data is read-only.
func (f *filler) twin() *filler {
	n := len(f.room)
	return &filler{p: f.p, items: f.items, groups: f.groups, may: f.may, spares: f.spares, spare: make([]int, len(f.spare)),
		room: make([]int64, n), full: make([]float64, n), weight: make([]float64, n), chosen: make([]float64, n)}
}

// mayTake reports whether things of an item may go into a bin, regardless of room.
func (f *filler) mayTake(bin, item int) bool { return f.may[item*len(f.p.Bins)+bin] }

// holds reports whether one thing of the item fits into an empty bin.
func (p *Problem) holds(bin, item int) bool {
	return Holds(p.Bins[bin].Room, p.Items[item].Size)
}

// Holds reports whether a size is within a room in each resource.
func Holds(room, size []int64) bool {
	for r := range size {
		if size[r] > room[r] {
			return false
		}
	}
	return true
}

// fill returns the most valuable filling found for a bin with the remaining things, or nil if no
// filling has any value. It tries two greedy ways, since neither is better for all values. It finds
// good fillings fast; fillBest finds the best one slowly.
func (f *filler) fill(bin int, values []float64, left []int) *pattern {
	level, steep := f.level(bin, values, left), f.steep(bin, values, left)
	if level == nil || steep.value > level.value {
		return steep
	}
	return level
}

// steep fills the bin by descending value per share, each time with as many things as fit.
func (f *filler) steep(bin int, values []float64, left []int) *pattern {
	f.empty(bin)
	f.measure()
	f.orderBy(bin, values, left)
	value := 0.0
	for _, c := range f.order {
		if n := f.most(c.item, left[c.item]); n > 0 {
			f.take(c.item, n)
			f.parts = append(f.parts, Part{c.item, n})
			value += values[c.item] * float64(n)
		}
	}

	return f.made(bin, value)
}

// empty makes the bin empty.
func (f *filler) empty(bin int) {
	copy(f.room, f.p.Bins[bin].Room)
	copy(f.spare, f.spares)
	f.parts = f.parts[:0]
}

// made returns the pattern of the parts taken, or nil.
func (f *filler) made(bin int, value float64) *pattern {
	if len(f.parts) == 0 {
		return nil
	}
	slices.SortFunc(f.parts, func(a, b Part) int { return cmp.Compare(a.Item, b.Item) })
	return &pattern{bin: bin, price: f.p.Bins[bin].Price, parts: slices.Clone(f.parts), value: value}
}

// level fills the bin by value per share of the remaining room, a few things at a time. A scarce
// resource becomes expensive, so the next things need little of it, and all resources end up full.
//
//	a bin of 8 CPU and 32 GiB; things of 2 CPU, 2 GiB and of 1 CPU, 7 GiB, worth the same for their share
//	steep fills it with the first: 8 CPU, 8 GiB
//	level takes some of each: 2 and 4 of them use all 8 CPU and all 32 GiB
func (f *filler) level(bin int, values []float64, left []int) *pattern {
	f.empty(bin)
	f.order = f.order[:0]
	for _, i := range f.items[bin] {
		if left[i] > 0 && values[i] > 0 {
			f.order = append(f.order, candidate{item: i})
		}
	}

	value := 0.0
	for len(f.order) > 0 {
		at, most := f.densest(values, left)
		if at < 0 {
			break
		}
		item := f.order[at].item
		n := min(most, max(1, f.most(item, math.MaxInt)/chunks))
		f.take(item, n)
		value += values[item] * float64(n)
		f.order[at].taken += n
	}

	for _, c := range f.order {
		if c.taken > 0 {
			f.parts = append(f.parts, Part{c.item, c.taken})
		}
	}
	return f.made(bin, value)
}

// chunks is the minimum number of turns in which level takes things of an item that could fill the
// bin by itself. More turns fill more evenly, but take longer.
const chunks = 6

// densest returns the position of the candidate with the highest value for its share of the
// remaining room, and the number of its things to take. The position is -1 if no candidate fits. It
// drops candidates that no longer fit. A share is relative to the remaining room, so it is
// recomputed for each turn.
func (f *filler) densest(values []float64, left []int) (at, most int) {
	f.measure()
	at = -1
	best := 0.0
	f.work += len(f.order)
	for n := range f.order {
		c := &f.order[n]
		if c.done {
			continue
		}
		density := values[c.item] / (f.share(c.item) + tiny)
		if density <= best {
			continue
		}
		fits := f.most(c.item, left[c.item]-c.taken)
		if fits == 0 {
			c.done = true
			continue
		}
		at, most, best = n, fits, density
	}

	return at, most
}

// orderBy sorts a bin's candidates by value per size. full must be set before.
func (f *filler) orderBy(bin int, values []float64, left []int) {
	f.order = f.order[:0]
	f.work += len(f.items[bin])
	for _, i := range f.items[bin] {
		if left[i] > 0 && values[i] > 0 {
			f.order = append(f.order, candidate{item: i, density: values[i] / (f.share(i) + tiny)})
		}
	}
	slices.SortFunc(f.order, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.density, a.density), cmp.Compare(a.item, b.item))
	})
}

// measure sets full to one over the remaining room in each resource.
func (f *filler) measure() {
	for r, room := range f.room {
		if f.full[r] = 0; room > 0 {
			f.full[r] = 1 / float64(room)
		}
	}
}

// share returns an item's weighted share of the bin. The weights are f.full: one over the room in
// each resource.
func (f *filler) share(item int) (sum float64) {
	for r, size := range f.p.Items[item].Size {
		sum += float64(size) * f.full[r]
	}
	return sum
}

// most returns the number of things of an item that fit into the remaining room, but at most limit.
// It is 0 without room, or if a group is full.
func (f *filler) most(item, limit int) int {
	n := int64(limit)
	for r, size := range f.p.Items[item].Size {
		if size > 0 {
			n = min(n, f.room[r]/size)
		}
	}
	for _, g := range f.groups[item] {
		n = min(n, int64(f.spare[g]))
	}
	return int(max(n, 0))
}

// take takes room for n things of an item, or returns it for a negative n. The things must fit.
func (f *filler) take(item, n int) {
	for r, size := range f.p.Items[item].Size {
		f.room[r] -= size * int64(n)
	}
	for _, g := range f.groups[item] {
		f.spare[g] -= n
	}
}

// alone returns a pattern with as many things of one item as fit, in the bin with the lowest cost
// per thing; nil if no bin takes the item. Every program begins with these patterns, so it has a
// solution.
func (f *filler) alone(item int) *pattern {
	var best *pattern
	for _, bin := range f.p.Items[item].Bins {
		if !f.p.holds(bin, item) {
			continue
		}
		b := &f.p.Bins[bin]
		f.empty(bin)
		n := f.most(item, f.p.Items[item].Count)
		if n > 0 && (best == nil || b.Price*float64(best.parts[0].Count) < best.price*float64(n)) {
			best = &pattern{bin: bin, price: b.Price, parts: []Part{{item, n}}}
		}
	}
	return best
}

// worth returns the total value of a pattern's things. A pattern worth more than its price, by the
// dual values, makes the program cheaper.
func (p *pattern) worth(values []float64) (sum float64) {
	for _, part := range p.parts {
		sum += values[part.Item] * float64(part.Count)
	}
	return sum
}
