package packing

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Options are how long to look.
type Options struct {
	// Rounds is how often bins are emptied and packed anew; 0: the default.
	Rounds int
	// Seed is for what is left to chance: which bins are emptied.
	Seed uint64
}

// limits of the search. None of them can make an answer wrong, only dearer.
const (
	exactItems    = 11         // so many things are packed in all ways
	pricingRounds = 400        // searches for patterns that would make the linear program cheaper
	pricingWork   = 20_000_000 // things looked at in these searches
	improvingWork = 15_000_000 // and to improve the solution
	mostBins      = 32         // kinds of bins that the linear program may buy
	gainful       = 1e-4       // by how much a pattern has to be worth more than it costs
	rounds        = 400        // of improve
	smoothing     = 0.8
)

// Solve buys bins.
func Solve(p *Problem, o Options) *Solution {
	s := &search{p: p, f: newFiller(p), options: o}
	s.options.Rounds = cmp.Or(o.Rounds, rounds)
	s.used, s.spent = make([]int, len(p.Bins)), make([]int64, len(p.Limits))
	s.left = make([]int, len(p.Items))
	things := 0

	for i := range p.Items {
		if s.f.alone(i) != nil {
			s.left[i] = p.Items[i].Count
			things += s.left[i]
		}
	}

	if things > 0 {
		s.values = s.relax()
		s.round()
		s.improve()
		if things <= exactItems {
			s.exact()
		}
	}

	return s.solution()
}

// search is the state of a solution in the making.
type search struct {
	p       *Problem
	f       *filler
	options Options
	// values is what a thing of each item costs where bins may be bought in parts, and whole are
	// the amounts of patterns that the linear program buys.
	values []float64
	bought []weighted
	// bins are those that were bought for good, and left what they do not have.
	bins  []*pattern
	left  []int
	used  []int   // by bin: how many
	spent []int64 // by limit
	fluid []float64
	// spending is how much the fluid would spend on each bin.
	spending []float64
	greedy   []*pattern
	proof    bool // nothing cheaper exists
}

type weighted struct {
	pattern *pattern
	amount  float64
}

// relax solves the linear program, and returns the values.
func (s *search) relax() []float64 {
	values := make([]float64, len(s.p.Items))
	rowOf := make([]int, len(s.p.Items))
	var need []float64
	var alone []*pattern
	for i, n := range s.left {
		if n > 0 {
			rowOf[i] = len(need)
			need, alone = append(need, float64(n)), append(alone, s.f.alone(i))
		}
	}

	m := newMaster(need, alone, rowOf)
	duals := make([]float64, len(need))
	read := func() {
		m.values(duals)
		for i, n := range s.left {
			if values[i] = 0; n > 0 {
				values[i] = duals[rowOf[i]]
			}
		}
	}

	read()
	centre, spending := s.f.fluid(s.left)
	s.spending = spending
	bins := s.promising()
	s.fluid = centre
	s.values = centre
	s.greedy = s.rest(s.left, bins)

	for _, f := range s.greedy {
		if m.enter(column{pattern: f}, rowOf) {
			read()
			for s.surplus(m, values, rowOf) {
				read()
			}
		}
	}

	near := make([]float64, len(values))
	random := rand.New(rand.NewPCG(s.options.Seed, 2))
	for round := range pricingRounds {
		if s.f.work > pricingWork {
			break
		}
		trust := smoothing * (1 - float64(round)/pricingRounds)
		noise := 0.3 * trust
		for i := range near {
			near[i] = (trust*centre[i] + (1-trust)*max(values[i], 0)) * (1 + noise*(2*random.Float64()-1))
		}
		if !s.price(m, bins, near, values, rowOf, read) && !s.price(m, bins, values, values, rowOf, read) {
			break
		}
	}

	for row, c := range m.basis {
		if c.pattern != nil && m.amount[row] > tiny {
			s.bought = append(s.bought, weighted{c.pattern, m.amount[row]})
		}
	}

	for i := range values {
		values[i] = max(values[i], 0.9*centre[i])
	}
	return values
}

// price brings those patterns into the program that are worth more than they cost, the best of each
// bin. It returns false if there is none.
func (s *search) price(m *master, bins []int, by, values []float64, rowOf []int, read func()) bool {
	var found []*pattern
	for _, bin := range bins {
		f := s.f.fill(bin, by, s.left)
		if f == nil {
			continue
		}
		if f.value = f.worth(values); f.value > f.price*(1+gainful) {
			found = append(found, f)
		}
	}

	slices.SortStableFunc(found, func(a, b *pattern) int { return cmp.Compare(b.value*a.price, a.value*b.price) })
	changed := false
	for _, f := range found {
		if f.worth(values) > f.price*(1+gainful) && m.enter(column{pattern: f}, rowOf) {
			changed = true
			read()
			for s.surplus(m, values, rowOf) {
				read()
			}
		}
	}

	return changed
}

// surplus lets the program buy more places than it needs of an item where that is cheaper.
func (s *search) surplus(m *master, values []float64, rowOf []int) bool {
	worst, at := -1e-9, -1
	for i, n := range s.left {
		if n > 0 && values[i] < worst {
			worst, at = values[i], i
		}
	}
	return at >= 0 && m.enter(column{row: rowOf[at]}, rowOf)
}

// promising are the bins of which the fluid would buy most, leaving out those that another makes
// needless: one that is as roomy, no dearer, and takes the same items.
func (s *search) promising() (bins []int) {
	order := make([]int, len(s.p.Bins))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.spending[b], s.spending[a]), cmp.Compare(s.p.Bins[a].Price, s.p.Bins[b].Price))
	})
	for _, bin := range order {
		if len(s.f.items[bin]) > 0 && !slices.ContainsFunc(bins, func(other int) bool { return s.replaces(other, bin) }) {
			bins = append(bins, bin)
		}
		if len(bins) == mostBins {
			break
		}
	}
	return bins
}

func (s *search) replaces(other, bin int) bool {
	o, b := &s.p.Bins[other], &s.p.Bins[bin]
	if o.Price > b.Price || o.Most > 0 || len(s.f.items[other]) < len(s.f.items[bin]) {
		return false
	}
	for r := range o.Room {
		if o.Room[r] < b.Room[r] {
			return false
		}
	}
	for _, l := range s.p.Limits {
		if l.Costs[other] > 0 {
			return false
		}
	}
	return slices.Equal(s.f.items[other], s.f.items[bin])
}

// solution is what was bought, with its bound.
func (s *search) solution() *Solution {
	out := &Solution{Left: make([]int, len(s.p.Items)), Exact: s.proof}
	packed := make([]int, len(s.p.Items))
	for _, b := range s.bins {
		out.Cost += b.price
		out.Bins = append(out.Bins, Bought{b.bin, b.parts})
		for _, part := range b.parts {
			packed[part.Item] += part.Count
		}
	}

	for i := range s.p.Items {
		out.Left[i] = s.p.Items[i].Count - packed[i]
	}
	slices.SortStableFunc(out.Bins, func(a, b Bought) int { return cmp.Compare(a.Bin, b.Bin) })
	if out.Bound = out.Cost; !s.proof && len(s.bins) > 0 {
		sum := 0.0
		for i, n := range packed {
			sum += s.fluid[i] * float64(n)
		}
		out.Bound = min(max(s.f.bound(s.values, packed), sum), out.Cost)
		if cheapest := s.cheapestOne(); out.Bound < cheapest {
			out.Bound = cheapest
		}
	}

	if out.Cost-out.Bound <= 1e-9*out.Cost {
		out.Exact = true
	}
	return out
}

// cheapestOne is a bound for few things: one bin at least is bought, and the dearest of what single
// things need.
func (s *search) cheapestOne() (most float64) {
	for _, b := range s.bins {
		for _, part := range b.parts {
			least := math.Inf(1)
			for _, bin := range s.p.Items[part.Item].Bins {
				if s.p.holds(bin, part.Item) {
					least = min(least, s.p.Bins[bin].Price)
				}
			}
			most = max(most, least)
		}
	}
	return most
}

// Bound returns what the bins cost at least into which all things of the problem go. Of few things
// that is what they cost.
func Bound(p *Problem) float64 {
	things := 0
	for i := range p.Items {
		things += p.Items[i].Count
	}

	if things <= exactItems {
		return Solve(p, Options{}).Bound
	}
	f := newFiller(p)
	counts, sum := make([]int, len(p.Items)), 0.0
	for i := range p.Items {
		counts[i] = p.Items[i].Count
	}

	values, _ := f.fluid(counts)
	for i, n := range counts {
		sum += values[i] * float64(n)
	}
	return sum
}
