package packing

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Options are how long to look. With the same problem and options the solution is the same: effort
// is counted in steps, not in time.
type Options struct {
	// Rounds is how often bins are emptied and packed anew; 0: the default, [Rounds].
	Rounds int
	// Seed is for what is left to chance: which bins are emptied.
	Seed uint64
}

// limits of the search. None of them can make an answer wrong, only dearer.
const (
	exactItems    = 11         // so many things are packed in all ways
	pricingSteps  = 200_000    // fillings of all bins that are looked at for those that make the program cheaper
	pivotShare    = 8          // how many numbers of a matrix are as much work as a thing that is looked at
	pricingWork   = 30_000_000 // things looked at to solve the linear program
	thingWork     = 50_000     // where bins are many: for each thing
	improvingWork = 15_000_000 // and to improve the solution
	divingWork    = 400_000    // and in each step of a dive
	atOnce        = 6          // a dive buys one in so many of the patterns that are bought in part
	smallProgram  = 20_000     // bins times items, of which the values bound even if there is more to find
	fewThings     = 6000       // of so many the program begins with whole solutions
	thin          = 1.3        // by which sizes of bins differ at least for both to be filled
	setSteps      = 200_000    // sets of bins that are looked at
	packSteps     = 20_000     // places of things that are tried for a set
	someBins      = 24         // kinds of bins that are asked for patterns each time
	gainful       = 1e-4       // by how much a pattern has to be worth more than it costs
	smoothing     = 0.8        // how much the values of the fluid count at first
)

// Rounds is how often bins are emptied and packed anew by default.
const Rounds = 400

// Solve buys bins.
//
// It always returns a solution: things that cannot go anywhere are in Left. If there are few things
// the answer is the best one; otherwise it is as good as the effort allows, and Bound says how good
// that is.
func Solve(p *Problem, o Options) *Solution {
	s := newSearch(p, o)
	if things := s.things(); things > 0 {
		s.find()
		if things <= exactItems {
			s.exact()
		} else {
			s.inSets()
		}
	}

	return s.solution()
}

// newSearch prepares a search in which nothing is bought yet. Things that no bin takes are out of
// it from the beginning.
func newSearch(p *Problem, o Options) *search {
	s := &search{p: p, f: newFiller(p), options: o, left: make([]int, len(p.Items))}
	s.twin = s.f.twin()
	s.options.Rounds = cmp.Or(o.Rounds, Rounds)
	s.used, s.spent = make([]int, len(p.Bins)), make([]int64, len(p.Limits))
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

// things is how many things are left.
func (s *search) things() (sum int) {
	for _, n := range s.left {
		sum += n
	}
	return sum
}

// find finds a good solution. The linear program has few values and a clear optimum but buys parts
// of bins, rounding makes them whole, and improving repairs what rounding has spoilt.
func (s *search) find() {
	s.relax()
	s.round()
	s.improve()
}

// search is the state of a solution in the making.
//
// While a solution is improved, bins, left, used and spent agree: what is in bins is not in left.
// Who tries something takes it back with count and -1.
type search struct {
	p       *Problem
	f, twin *filler
	options Options
	// values is what a thing of each item costs where bins may be bought in parts, and whole are
	// the amounts of patterns that the linear program buys.
	values []float64
	bought []weighted
	// duals are the values as the linear program has them. The duals are right for a bound; values
	// are for choosing fillings, and are kept near the fluid's, since a young program may value a
	// thing at 0.
	duals []float64
	// useful are the bins that others do not make needless, by price; some are those of them that
	// differ in size, and tempting those that the program buys.
	useful, some, tempting []int
	alone                  []*pattern // by item: the best bin with nothing else
	// bins are those that were bought for good, and left what they do not have.
	bins  []*pattern
	left  []int
	used  []int   // by bin: how many
	spent []int64 // by limit
	fluid []float64
	// proof and bounded are set by exact and inSets, which know more than the programs.
	proof bool // nothing cheaper exists
	// bounded is the bound, once it is measured.
	bounded  float64
	measured bool
	solved   bool // the linear program is good for a bound
}

// relax solves the linear program, and keeps what a thing of each item costs by it.
//
// The fluid comes first: its values are a bound at once, and show the program where to look. A
// program that begins with good patterns needs fewer steps.
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
		if s.options.Rounds < Rounds { // of less effort
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
		// A thing of which the program has places to spare is worth nothing to it, and would never
		// be packed by value.
		s.values[i] = max(s.values[i], 0.9*centre[i])
	}
}

// needed are the bins that no other makes needless: one that is as roomy, no dearer, and takes the
// same items. takes has a number for each bin, equal for bins that take the same items.
func (s *search) needed() (bins, takes []int) {
	order := make([]int, 0, len(s.p.Bins))
	takes = make([]int, len(s.p.Bins))
	names, name := map[string]int{}, []byte(nil)

	// Bins that take the same items get one number: to compare numbers is cheaper than lists.
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

	// By price, so that only a bin before can make another one needless.
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

// thinned are the useful bins without those that differ little in size from another that takes the
// same items: a filling gets the cheapest bin that holds it afterwards. names are the numbers of
// needed. Only where to look first is decided by it: nothing is bought less cheaply.
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

// replaces reports whether the other bin is as roomy, no dearer, and can be bought at any time: one
// with a limit may run out.
func (s *search) replaces(other, bin int) bool {
	o, b := &s.p.Bins[other], &s.p.Bins[bin]
	if o.Price > b.Price || o.Most > 0 || !holds(o.Room, b.Room) {
		return false
	}
	return !slices.ContainsFunc(s.p.Limits, func(l Limit) bool { return l.Costs[other] > 0 })
}

// solution is what was bought, with its bound. The bound is that of the things that were packed,
// since what is left costs nothing.
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

// packed is how many things of each item were bought for.
func (s *search) packed() []int {
	packed := make([]int, len(s.p.Items))
	for _, b := range s.bins {
		for _, part := range b.parts {
			packed[part.Item] += part.Count
		}
	}
	return packed
}

// least is a cost below which no bins take so many things. It is measured once, since it costs as
// much as solving; inSets may raise it later.
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

// cheapestOne is a bound for few things: one bin at least is bought, and the dearest of what single
// things need. It is the best bound where one bin does.
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

// Bound returns what the bins cost at least into which all things of the problem go. Of large
// problems only the fluid is asked.
//
// What no bin takes costs nothing.
func Bound(p *Problem) float64 {
	s := newSearch(p, Options{})
	if s.isSmall() {
		return Solve(p, Options{}).Bound
	}
	values, _ := s.f.fluid(s.left)
	return worth(values, s.left)
}

// isSmall reports whether values that the linear program has when its time is up are good for a
// bound.
func (s *search) isSmall() bool { return len(s.useful)*len(s.left) < smallProgram }
