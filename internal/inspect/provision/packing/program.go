package packing

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
)

// program is the linear program over patterns for what is left, while patterns join it.
//
// This is column generation: the program knows few patterns, its values say what a good one would
// be worth, and pricing looks for bins whose filling is worth more than the bin costs. When there
// is none, no other pattern can make it cheaper, and its cost bounds that of all whole packings.
type program struct {
	s    *search
	left []int
	// Items of which nothing is left have no row, and the value 0.
	rowOf  []int // by item
	m      *master
	duals  []float64 // by row
	values []float64 // by item: what one more thing costs
}

// weighted is a pattern of which the program buys an amount.
type weighted struct {
	pattern *pattern
	amount  float64
}

// newProgram begins with patterns of one item each. All items of which something is left go into
// some bin. left is not copied, and must not change while the program is used.
func (s *search) newProgram(left []int) *program {
	p := &program{s: s, left: left, rowOf: make([]int, len(left)), values: make([]float64, len(left))}
	var need []float64
	var alone []*pattern
	for i, n := range left {
		if n > 0 {
			p.rowOf[i] = len(need)
			need, alone = append(need, float64(n)), append(alone, s.alone[i])
		}
	}
	p.m = newMaster(need, alone, p.rowOf)
	p.duals = make([]float64, len(need))
	p.read()
	return p
}

// read reads the values. It is called after each change of the basis.
func (p *program) read() {
	p.m.values(p.duals)
	for i, n := range p.left {
		if p.values[i] = 0; n > 0 {
			p.values[i] = p.duals[p.rowOf[i]]
		}
	}
}

// enter has a pattern join. It returns false if that changes nothing. Work is counted by the
// numbers of the inverse that a pivot goes through.
func (p *program) enter(f *pattern) bool {
	p.s.f.work += len(p.m.need) * len(p.m.need) / pivotShare
	if !p.m.enter(column{pattern: f}, p.rowOf) {
		return false
	}
	p.read()
	for p.surplus() {
		p.read()
	}
	return true
}

// surplus lets the program buy more places than it needs of an item where that is cheaper. A value
// below 0 says that one more thing would make the packing cheaper: then a place that is not needed
// is bought with the others, and left empty.
func (p *program) surplus() bool {
	worst, at := -1e-9, -1
	for i, n := range p.left {
		if n > 0 && p.values[i] < worst {
			worst, at = p.values[i], i
		}
	}
	if at < 0 {
		return false
	}
	p.s.f.work += len(p.m.need) * len(p.m.need) / pivotShare
	return p.m.enter(column{row: p.rowOf[at]}, p.rowOf)
}

// improve has patterns join that are worth more than they cost, until it finds none or has done so
// much work, and reports whether there is none. First the values by which bins are filled stay near
// the centre, since those of a young program jump; in the end all ways to fill a bin are tried.
// Bins whose patterns the program buys are asked each time, of the others some, in turn.
//
// The centre is the fluid's values. trust in them fades by 5 % in each turn, so that after some
// seventy turns the program's values alone count. Fillings are greedy until nothing more is found
// by them; only then are the best fillings searched, which takes long and proves that there are
// none. centre may be nil: no trust.
func (p *program) improve(bins []int, centre []float64, work int) (done bool) {
	near := make([]float64, len(p.values))
	random := rand.New(rand.NewPCG(p.s.options.Seed, 2))
	first := min(len(bins), someBins)
	others := bins[first:]
	until := p.s.f.work + work
	trust := smoothing
	if centre == nil {
		trust = 0
	}

	at, idle := 0, 0
	for hard := false; p.s.f.work < until; {
		asked := append(slices.Clone(bins[:first]), p.hot()...)
		for range min(2, len(others)) {
			asked = append(asked, others[at])
			at = (at + 1) % len(others)
			idle++
		}
		if len(others) == 0 {
			idle++
		}
		// Noise keeps bins from being filled in the same way again.
		for i := range near {
			near[i] = max(p.values[i], 0)
			if trust > 0 {
				near[i] = (trust*centre[i] + (1-trust)*near[i]) * (1 + 0.3*trust*(2*random.Float64()-1))
			}
		}
		if trust *= 0.95; trust < 0.02 {
			trust = 0
		}

		switch {
		case p.price(asked, near, hard):
			idle = 0
		// By the true values there may be patterns yet.
		case trust > 0:
			idle = 0
		case idle > len(others) && hard:
			return true
		case idle > len(others):
			hard, idle = true, 0
		}
	}
	return false
}

// hot are the bins whose patterns the program buys most of. There are at most someBins.
func (p *program) hot() (bins []int) {
	for row, c := range p.m.basis {
		if c.pattern != nil && p.m.amount[row] > 0.5 {
			bins = append(bins, c.pattern.bin)
		}
	}
	slices.Sort(bins)
	bins = slices.Compact(bins)
	return bins[:min(len(bins), someBins)]
}

// price has those patterns of the bins join that are worth more than they cost. It returns false if
// there is none. Fillings are made by the values of by, but only those join that are worth it by
// the program's own.
func (p *program) price(bins []int, by []float64, hard bool) bool {
	fillings := p.s.fillEach(bins, func(f *filler, bin int) (made *pattern) {
		if hard {
			made, _ = f.fillBest(bin, p.values, p.left, p.s.p.Bins[bin].Price*(1+gainful), pricingSteps/len(p.s.useful)+1)
			return made
		}
		return f.fill(bin, by, p.left)
	})
	var found []*pattern
	for _, f := range fillings {
		if f == nil {
			continue
		}
		// The same filling in a cheaper bin is a better pattern.
		f = p.s.fitted(f)
		if f.value = f.worth(p.values); f.value > f.price*(1+gainful) {
			found = append(found, f)
		}
	}

	slices.SortStableFunc(found, func(a, b *pattern) int { return cmp.Compare(b.value*a.price, a.value*b.price) })
	changed := false
	for _, f := range found {
		// The values change with each pattern that enters, so those found later may no longer be
		// worth it.
		if f.worth(p.values) > f.price*(1+gainful) && p.enter(f) {
			changed = true
		}
	}
	return changed
}

// fillEach fills each of the bins, half of them on another core. What it finds, and how much work
// that is, does not depend on it. Positions are divided in advance, and work is added up
// afterwards, so the result is that of one core.
func (s *search) fillEach(bins []int, fill func(f *filler, bin int) *pattern) []*pattern {
	made := make([]*pattern, len(bins))
	fillFrom := func(f *filler, first int) {
		for at := first; at < len(bins); at += 2 {
			made[at] = fill(f, bins[at])
		}
	}

	var other sync.WaitGroup
	other.Go(func() { fillFrom(s.twin, 1) })
	fillFrom(s.f, 0)
	other.Wait()

	s.f.work += s.twin.work
	s.twin.work = 0
	return made
}

// settle has patterns of the pool join, the one that is worth most for its price first, until none
// is worth more than it costs. It only chooses among what is known, and fills nothing.
func (p *program) settle(pool []*pattern) {
	for {
		var best *pattern
		most := 1 + gainful
		for _, f := range pool {
			if worth := f.worth(p.values); worth > most*f.price {
				best, most = f, worth/f.price
			}
		}
		p.s.f.work += len(pool)
		if best == nil || !p.enter(best) {
			return
		}
	}
}

// bought lists what the program buys. Rows whose basic column is a surplus buy nothing.
func (p *program) bought() (list []weighted) {
	for row, c := range p.m.basis {
		if c.pattern != nil && p.m.amount[row] > tiny {
			list = append(list, weighted{c.pattern, p.m.amount[row]})
		}
	}
	return list
}
