// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Options control the search effort. The same problem and options give the same solution: effort is
// counted in steps, not in time.
type Options struct {
	// Rounds is the number of times bins are emptied and repacked; 0 means the default, [Rounds].
	Rounds int
	// Seed determines the random choices of the search.
	Seed uint64
}

// Limits of the search. None of them can make a result wrong, only more expensive.
const (
	exactItems    = 11         // up to this many things, all packings are tried
	pricingSteps  = 200_000    // search steps, over all bins, for fillings that reduce the cost
	pivotShare    = 8          // matrix entries that cost as much work as visiting one thing
	pricingWork   = 30_000_000 // visited things to solve the linear program
	thingWork     = 50_000     // maximum of pricingWork per thing, unless the program is small
	improvingWork = 15_000_000 // visited things to improve the solution
	divingWork    = 400_000    // visited things in each step of a dive
	atOnce        = 6          // a step of a dive buys 1/atOnce of the fractionally bought patterns
	smallProgram  = 20_000     // bins times items up to which an unfinished program gives a bound
	fewThings     = 6000       // up to this many things, the program begins with whole solutions
	thin          = 1.3        // minimum ratio of the sizes of two bins for both to be filled
	setSteps      = 200_000    // examined sets of bins
	packSteps     = 20_000     // places tried for things, per set
	someBins      = 24         // kinds of bins searched for patterns in one step
	gainful       = 1e-4       // minimum relative gain of a pattern: its value over its cost
	smoothing     = 0.8        // initial weight of the fluid's values
)

// Rounds is the default number of times bins are emptied and repacked.
const Rounds = 400

// Solve buys bins.
//
// It always returns a solution: things that fit nowhere are in Left. For few things and without
// limits, the result is optimal. Otherwise it is as good as the effort allows, and Bound limits its
// distance from the optimum.
func Solve(p *Problem, o Options) *Solution {
	s := newSearch(p, o)
	if things := s.things(); things > 0 {
		s.find()
		switch {
		// Neither method supports limits.
		case len(p.Limits) > 0 || slices.ContainsFunc(p.Bins, func(b Bin) bool { return b.Most > 0 }):
		case things <= exactItems:
			s.exact()
		default:
			s.inSets()
		}
	}

	return s.solution()
}

// newSearch prepares a search without purchases. It excludes things that fit no bin.
func newSearch(p *Problem, o Options) *search {
	s := &search{p: p, f: newFiller(p), options: o, left: make([]int, len(p.Items))}
	s.twin = s.f.twin()
	s.options.Rounds = cmp.Or(o.Rounds, Rounds)
	s.used, s.spent, s.costs = make([]int, len(p.Bins)), make([]int64, len(p.Limits)), make([][]cost, len(p.Bins))
	for i, l := range p.Limits {
		for bin, amount := range l.Costs {
			s.costs[bin] = append(s.costs[bin], cost{i, amount})
		}
	}
	for i := range p.Items {
		s.alone = append(s.alone, s.f.alone(i))
		if s.alone[i] != nil {
			s.left[i] = p.Items[i].Count
		}
	}
	var takes []int
	s.useful, takes = s.needed()
	s.some = s.thinned(takes)
	return s
}

// things returns the number of remaining things.
func (s *search) things() (sum int) {
	for _, n := range s.left {
		sum += n
	}
	return sum
}

// find finds a good solution: the linear program buys fractional bins at minimum cost, round makes
// them whole, and improve repairs the damage of rounding.
func (s *search) find() {
	s.relax()
	s.round()
	s.improve()
}

// cost is the part of a limit used by one bin.
type cost struct {
	limit  int
	amount int64
}

// search is the state of a solution in progress.
//
// While a solution is improved, bins, left, used and spent are consistent: things in bins are not
// in left. Trials are reverted by count(bin, -1).
type search struct {
	p       *Problem
	f, twin *filler
	options Options
	// values holds the cost of one thing of each item if bins could be bought in fractions. bought
	// holds the amount of each pattern bought by the linear program.
	values []float64
	bought []weighted
	// duals holds the linear program's values, which give a bound. values is used to choose
	// fillings, and is at least 0.9 of the fluid's values, because the program may value a thing at
	// 0.
	duals []float64
	// useful lists the bins not dominated by any other, by price. some lists the useful bins of
	// sufficiently different sizes, and tempting lists the bins bought by the program.
	useful, some, tempting []int
	alone                  []*pattern // by item: the best bin for this item only
	// bins holds the purchases, and left counts the things of each item that are not in them.
	bins  []*pattern
	left  []int
	used  []int    // by bin: the number bought
	spent []int64  // by limit
	costs [][]cost // by bin
	fluid []float64
	// proof and bounded are set by exact and inSets, with stronger results than the programs'.
	proof bool // nothing cheaper exists
	// bounded is the bound, once it is computed.
	bounded  float64
	measured bool
	solved   bool // the linear program's values give a bound
}

// relax solves the linear program, and keeps its purchases and its values.
//
// The fluid is computed first: its values provide an immediate bound, and guide the program. Good
// initial patterns save the program steps.
func (s *search) relax() {
	centre, spending := s.f.fluid(s.left)
	slices.SortStableFunc(s.some, func(a, b int) int { return cmp.Compare(spending[b], spending[a]) })
	s.fluid = centre
	p := s.newProgram(s.left)
	// For few things whole solutions are cheap to find, and their patterns are better than rough
	// ones.
	if s.values = centre; s.things() <= fewThings {
		p.settle(s.rest(s.left, s.some[:min(len(s.some), someBins)]))
	} else {
		p.settle(s.rough(centre))
	}
	work := pricingWork
	if !s.isSmall() {
		work = min(work, s.things()*thingWork)
		if s.options.Rounds < Rounds { // reduced effort
			work = min(work, pricingWork/Rounds*s.options.Rounds)
		}
	}
	s.solved = p.improve(s.some, centre, work) || s.isSmall()
	s.bought = p.bought()
	s.duals = slices.Clone(p.values)
	s.values = slices.Clone(p.values)
	for _, w := range s.bought {
		s.tempting = append(s.tempting, w.pattern.bin)
	}
	slices.Sort(s.tempting)
	s.tempting = slices.Compact(s.tempting)
	for i := range s.values {
		// The program gives the value 0 to a thing with surplus places, and packing by value would
		// never pack it.
		s.values[i] = max(s.values[i], 0.9*centre[i])
	}
}

// needed returns the bins not dominated by another bin with as much room, at most the same price,
// and the same items. takes holds a number for each bin, equal for bins with the same items.
func (s *search) needed() (bins, takes []int) {
	order := make([]int, 0, len(s.p.Bins))
	takes = make([]int, len(s.p.Bins))
	names, name := map[string]int{}, []byte(nil)

	// Bins with the same items get one number, because numbers are cheaper to compare than lists.
	for bin, items := range s.f.items {
		if len(items) == 0 {
			continue
		}
		order = append(order, bin)
		name = name[:0]
		for _, item := range items {
			name = strconv.AppendInt(append(name, ' '), int64(item), 10)
		}
		number, known := names[string(name)]
		if !known {
			number = len(names)
			names[string(name)] = number
		}
		takes[bin] = number
	}

	// Sort by price, so that a bin can only be dominated by an earlier one.
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.p.Bins[a].Price, s.p.Bins[b].Price), cmp.Compare(s.p.Bins[b].Room[0], s.p.Bins[a].Room[0]))
	})

	for _, bin := range order {
		if !slices.ContainsFunc(bins, func(other int) bool { return takes[other] == takes[bin] && s.replaces(other, bin) }) {
			bins = append(bins, bin)
		}
	}
	return bins, takes
}

// thinned returns the useful bins, except for bins close in size to another bin with the same
// items. This reduces only the number of bins filled by the search, not the quality of purchases,
// because each filling is afterwards moved to the cheapest bin that holds it. names is the second
// result of needed.
func (s *search) thinned(names []int) (bins []int) {
	last := map[string]int{}
	for _, bin := range s.useful { // by price
		b := &s.p.Bins[bin]
		key := fmt.Sprint(names[bin])
		for _, room := range b.Room[1:] {
			key += fmt.Sprint(" ", int(5*math.Log2(float64(room+1)/float64(b.Room[0]+1))))
		}
		if smaller, known := last[key]; known && float64(b.Room[0]) < thin*float64(s.p.Bins[smaller].Room[0]) &&
			b.Price*float64(s.p.Bins[smaller].Room[0]) > 0.9*s.p.Bins[smaller].Price*float64(b.Room[0]) {
			continue
		}
		last[key] = bin
		bins = append(bins, bin)
	}
	return bins
}

// replaces reports whether the other bin has at least as much room, at most the same price, and
// unlimited availability, since a limited bin may run out.
func (s *search) replaces(other, bin int) bool {
	o, b := &s.p.Bins[other], &s.p.Bins[bin]
	if o.Price > b.Price || o.Most > 0 || !Holds(o.Room, b.Room) {
		return false
	}
	return len(s.costs[other]) == 0
}

// solution returns the purchases with their bound. The bound covers the packed things, since
// unpacked ones cost nothing.
func (s *search) solution() *Solution {
	out := &Solution{Left: make([]int, len(s.p.Items)), Exact: s.proof}
	packed := s.packed()
	for _, b := range s.bins {
		out.Cost += b.price
		out.Bins = append(out.Bins, Bought{b.bin, b.parts})
	}

	for i := range s.p.Items {
		out.Left[i] = s.p.Items[i].Count - packed[i]
	}
	slices.SortStableFunc(out.Bins, func(a, b Bought) int { return cmp.Compare(a.Bin, b.Bin) })
	if out.Bound = out.Cost; !s.proof && len(s.bins) > 0 {
		out.Bound = min(s.least(packed), out.Cost)
	}

	if out.Cost-out.Bound <= 1e-9*out.Cost {
		out.Exact = true
	}
	return out
}

// packed returns the number of packed things of each item.
func (s *search) packed() []int {
	packed := make([]int, len(s.p.Items))
	for _, b := range s.bins {
		for _, part := range b.parts {
			packed[part.Item] += part.Count
		}
	}
	return packed
}

// least returns a lower bound on the cost of bins for the given number of things of each item. It
// is computed once, since it costs as much as solving; inSets may raise it later.
func (s *search) least(packed []int) float64 {
	if !s.measured {
		s.measured = true
		s.bounded = max(s.bounded, worth(s.fluid, packed), s.cheapestOne())
		if s.solved {
			s.bounded = max(s.bounded, s.f.bound(s.useful, s.duals, packed))
		}
	}
	return s.bounded
}

// cheapestOne is a bound for few things. At least one bin is bought, so the cost is at least the
// price of the cheapest bin for any single thing; the bound is the highest of these prices. It is
// the best bound if one bin suffices.
func (s *search) cheapestOne() (most float64) {
	for i, n := range s.packed() {
		if n == 0 {
			continue
		}
		least := math.Inf(1)
		for _, bin := range s.p.Items[i].Bins {
			if s.p.holds(bin, i) {
				least = min(least, s.p.Bins[bin].Price)
			}
		}
		most = max(most, least)
	}
	return most
}

// Bound returns a lower bound on the cost of bins for all things of the problem. For large problems
// it uses only the fluid.
//
// Things that fit no bin cost nothing.
func Bound(p *Problem) float64 {
	s := newSearch(p, Options{})
	if s.isSmall() {
		return Solve(p, Options{}).Bound
	}
	values, _ := s.f.fluid(s.left)
	return worth(values, s.left)
}

// Shares divides the result of Bound among the things, and returns the share of one thing of each
// item.
func Shares(p *Problem) []float64 {
	s := newSearch(p, Options{})
	values, _ := s.f.fluid(s.left)
	sum, bound := worth(values, s.left), Bound(p)
	for i := range values {
		values[i] *= bound / max(sum, tiny)
	}
	return values
}

// isSmall reports whether the problem is so small that the linear program's values give a bound
// even if the program was stopped before it finished.
func (s *search) isSmall() bool { return len(s.useful)*len(s.left) < smallProgram }
