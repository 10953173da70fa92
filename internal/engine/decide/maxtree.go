// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"
	"math/bits"
)

// maxTree finds the highest of many numbers that change one at a time. It maintains the highest
// number and the count of its occurrences for every block of 64 numbers and for every 64 blocks. A
// block is reread only after all its highest numbers have decreased.
//
// A ranking uses it instead of buckets while at most one group has unsettled nodes. It takes two
// bytes per node and accesses little memory per change, so the rankings of hundreds of classes can
// follow the same changes.
//
// Invariant: a block's height is exact or too high, never too low, and many counts the numbers
// equal to the height. Blocks whose height may be too high are marked, and highestOf rereads them.
type maxTree struct {
	numbers []int16
	blocks  []maximum
	above   []maximum // of 64 blocks each
	marked  []uint64  // bit set of changed blocks, with one word per element of above
}

// maximum is the maximum of some numbers, and the count of its occurrences. If many is 0, all
// numbers are lower.
type maximum struct {
	height int16
	many   int32
}

// foot is lower than all numbers.
const foot = math.MinInt16

func newMaxTree(numbers []int16) *maxTree {
	s := &maxTree{}
	s.startOver(numbers)
	return s
}

// startOver replaces all numbers, possibly by a longer list.
func (s *maxTree) startOver(numbers []int16) {
	s.numbers = numbers
	n := (len(numbers) + 63) / 64
	m := (n + 63) / 64
	s.blocks, s.above, s.marked = make([]maximum, n), make([]maximum, m), make([]uint64, m)
	for b := range s.blocks {
		s.blocks[b].height = math.MaxInt16
		s.marked[b>>6] |= 1 << (b & 63)
	}
}

// numberChanged records that number i has changed; before is its previous value.
func (s *maxTree) numberChanged(i int32, before int16) {
	b, now := i>>6, s.numbers[i]
	p := &s.blocks[b]
	if before < p.height && now < p.height {
		return
	}
	if before == p.height {
		p.many--
	}
	switch {
	case now == p.height:
		p.many++
	case now > p.height:
		*p = maximum{now, 1}
	}
	s.marked[b>>6] |= 1 << (b & 63)
}

// highestOf returns the highest number and how often it occurs.
func (s *maxTree) highestOf() maximum {
	top := maximum{height: foot}
	for a, marks := range s.marked {
		if marks != 0 {
			for ; marks != 0; marks &= marks - 1 {
				if b := a<<6 + bits.TrailingZeros64(marks); s.blocks[b].many == 0 {
					s.blocks[b] = maximumOf(s.numbers[b<<6 : min(b<<6+64, len(s.numbers))])
				}
			}
			s.marked[a] = 0
			s.above[a] = joinMaximums(s.blocks[a<<6 : min(a<<6+64, len(s.blocks))])
		}
		top = top.join(s.above[a])
	}
	return top
}

// nth returns the index of the nth occurrence of the highest number. top must be the result of
// highestOf after the last change.
func (s *maxTree) nth(n int, top maximum) int32 {
	for a, p := range s.above {
		if p.height != top.height {
			continue
		}
		if n >= int(p.many) {
			n -= int(p.many)
			continue
		}
		for b := a << 6; ; b++ {
			switch p := s.blocks[b]; {
			case p.height != top.height:
			case n >= int(p.many):
				n -= int(p.many)
			default:
				return s.nthIn(b, n, top.height)
			}
		}
	}

	return none
}

// nthIn returns the index of the nth number of this height in a block. The block must contain more
// than n such numbers.
func (s *maxTree) nthIn(block, n int, height int16) int32 {
	for i := block << 6; ; i++ {
		if s.numbers[i] == height {
			if n == 0 {
				return int32(i)
			}
			n--
		}
	}
}

func maximumOf(numbers []int16) maximum {
	height, many := int16(foot), int32(0)
	for _, v := range numbers {
		if v > height {
			height, many = v, 0
		}
		if v == height {
			many++
		}
	}
	return maximum{height, many}
}

// joinMaximums returns the maximum of several blocks.
func joinMaximums(peaks []maximum) maximum {
	top := maximum{height: foot}
	for _, p := range peaks {
		top = top.join(p)
	}
	return top
}

// join returns the higher of two maximums; if they have the same height, it adds up their counts.
func (p maximum) join(o maximum) maximum {
	switch {
	case o.height > p.height:
		return o
	case o.height == p.height:
		p.many += o.many
	}
	return p
}
