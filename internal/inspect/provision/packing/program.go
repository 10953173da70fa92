// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
)

// program is the linear program over patterns for the remaining things, while patterns join it.
//
// This is column generation: the program has few patterns, its values determine the worth of a
// possible pattern, and pricing looks for bins with a filling worth more than the bin. Without such
// a filling, no other pattern can make the program cheaper, and its cost is a lower bound on the
// cost of any packing with whole bins.
type program struct {
	s    *search
	left []int
	// Items without remaining things have no row and the value 0.
	rowOf  []int // by item
	m      *master
	duals  []float64 // by row
	values []float64 // by item: the cost of one more thing
}

// weighted is a pattern and the amount of it bought by the program.
type weighted struct {
	pattern *pattern
	amount  float64
}

// newProgram begins with patterns of one item each. All remaining things must fit into some bin.
// left is not copied, and must not change while the program is used.
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

// enter adds a pattern, and returns false if the pattern cannot enter. A pivot counts as work in
// proportion to the entries of the inverse.
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

// surplus lets the program buy more places for an item than needed if that is cheaper. A negative
// value means that one more thing would make the packing cheaper; the superfluous place is then
// bought as part of a pattern and stays empty.
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

// improve adds patterns worth more than they cost, until it finds none or has used up its work, and
// reports whether none remain. Initially the values for filling bins stay near the centre, because
// the values of a program with few patterns jump. Bins in heavy use by the program are priced each
// time; a few of the remaining bins are priced in turn.
//
// The centre is the fluid's values. trust in them fades by 5 % in each turn, so after some seventy
// turns only the program's values count. Fillings are greedy until they yield no further pattern.
// Only then does improve search for the best fillings, which is slow, but proves that no pattern
// remains. A nil centre means no trust.
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
		// Noise keeps bins from being filled the same way repeatedly.
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
		// The program's own values may still yield patterns.
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

// hot returns the bins in heavy use by the program, at most someBins.
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

// price fills the bins, adds the fillings worth more than they cost as patterns, and returns false
// if it added none. Fillings are made by the values in guide, but are added only if they are
// worthwhile by the program's values.
func (p *program) price(bins []int, guide []float64, hard bool) bool {
	fillings := p.s.fillEach(bins, func(f *filler, bin int) (made *pattern) {
		if hard {
			made, _ = f.fillBest(bin, p.values, p.left, p.s.p.Bins[bin].Price*(1+gainful), pricingSteps/len(p.s.useful)+1)
			return made
		}
		return f.fill(bin, guide, p.left)
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
		// The values change with each pattern that enters, so later ones may no longer be
		// worthwhile.
		if f.worth(p.values) > f.price*(1+gainful) && p.enter(f) {
			changed = true
		}
	}
	return changed
}

// fillEach fills each of the bins, half of them on another core. Results and work are
// deterministic: positions are divided in advance and work is added up afterwards, so the result is
// the same as on one core.
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

// settle adds patterns of the pool, by descending worth per price, until none is worth more than it
// costs. It fills no bins.
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

// bought lists the program's purchases. Rows with a surplus as basic column buy nothing.
func (p *program) bought() (list []weighted) {
	for row, c := range p.m.basis {
		if c.pattern != nil && p.m.amount[row] > tiny {
			list = append(list, weighted{c.pattern, p.m.amount[row]})
		}
	}
	return list
}

// master is the linear program over patterns: buy fractional bins at minimum cost, with at least as
// many places as there are things. It is solved by the revised simplex method; columns are added
// when found.
//
// inverse is the dense inverse of the basis, with a row for each item. amount holds the amount of
// each basic column; amounts are never negative. All rows are "at least", so a pattern with a
// superfluous thing does no harm.
type master struct {
	need    []float64 // by row: the number of things
	inverse [][]float64
	basis   []column // by row
	amount  []float64
	pivots  int
	filled  []int32 // scratch space of enter
}

// column is a pattern, or the surplus of a row if pattern is nil.
type column struct {
	pattern *pattern
	row     int // row of the surplus
}

// cost returns the price of the pattern; surplus costs nothing.
func (c *column) cost() float64 {
	if c.pattern == nil {
		return 0
	}
	return c.pattern.price
}

// newMaster returns a program with one pattern for each row, which contains only things of this
// row. Buying as many of each pattern as its row needs is feasible, and the inverse of this basis
// is diagonal.
func newMaster(need []float64, alone []*pattern, rowOf []int) *master {
	m := &master{need: need, amount: make([]float64, len(need))}
	m.inverse = make([][]float64, len(need))
	for row, p := range alone {
		n := 0.0
		for _, part := range p.parts {
			if rowOf[part.Item] == row {
				n += float64(part.Count)
			}
		}
		m.inverse[row] = make([]float64, len(need))
		m.inverse[row][row] = 1 / n
		m.basis = append(m.basis, column{pattern: p})
		m.amount[row] = need[row] / n
	}
	return m
}

// values computes the dual values: the cost of one more thing of a row. The values are the costs of
// the basis times the inverse. A pattern with things worth more than its price makes the program
// cheaper if it enters.
func (m *master) values(into []float64) {
	clear(into)
	for row := range m.basis {
		cost := m.basis[row].cost()
		if cost == 0 {
			continue
		}
		line := m.inverse[row][:len(into)]
		for k := range into {
			into[k] += cost * line[k]
		}
	}
}

// tiny is the tolerance for rounding errors.
const tiny = 1e-9

// enter brings a column into the basis. It returns false if the step is unbounded, which does not
// happen in a sound program.
//
// It is one step of the simplex method: the direction gives the amount of each basic column
// replaced by the new column, and the first column to reach 0 leaves. If several reach 0, the
// column with the largest direction leaves, for the sake of accuracy.
func (m *master) enter(c column, rowOf []int) bool {
	n := len(m.need)
	direction := make([]float64, n)
	for row := range n {
		if c.pattern == nil {
			direction[row] = -m.inverse[row][c.row]
			continue
		}
		for _, part := range c.pattern.parts {
			direction[row] += m.inverse[row][rowOf[part.Item]] * float64(part.Count)
		}
	}

	out, least := -1, 0.0
	for row, d := range direction {
		if d > tiny {
			if ratio := m.amount[row] / d; out < 0 || ratio < least-tiny || ratio < least+tiny && d > direction[out] {
				out, least = row, ratio
			}
		}
	}

	if out < 0 {
		return false
	}
	least = max(least, 0)
	pivot, filled := m.inverse[out], m.filled[:0]
	for k := range pivot {
		if pivot[k] != 0 { // few are not zero
			pivot[k] /= direction[out]
			filled = append(filled, int32(k))
		}
	}
	m.filled = filled

	for row, d := range direction {
		if row == out || d == 0 {
			continue
		}
		m.amount[row] = max(m.amount[row]-d*least, 0)
		// Only the columns present in the pivot row change; at the beginning these are few.
		line := m.inverse[row][:len(pivot)]
		for _, k := range filled {
			line[k] -= d * pivot[k]
		}
	}

	m.basis[out], m.amount[out] = c, least
	m.pivots++
	return true
}
