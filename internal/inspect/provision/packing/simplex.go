// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package packing

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
