// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"
	"math/bits"
)

// maxTree finds the highest of many numbers that change one at a time. It maintains the highest
// number and the count of its occurrences for every block of 64 numbers and for every 64 blocks. A
// block is reread only after the last of its highest numbers has fallen.
//
// A ranking with all nodes in one group uses it instead of buckets: it costs two bytes per node and
// touches little memory, so the rankings of hundreds of classes can follow the same changes.
//
// Invariant: a block's maximum is exact or too high, never too low; many counts the numbers at that
// height. Blocks with a possibly excessive maximum are marked, and reread by highestOf.
type maxTree struct {
	numbers []int16
	blocks  []maximum
	above   []maximum // of 64 blocks each
	marked  []uint64  // a bit for each block that changed, a word for each of above
}

// maximum is the maximum of some numbers, and the count of its occurrences. many may be 0: then all
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

// startOver starts over with other numbers, possibly more of them.
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

// numberChanged records the change of a number from before.
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

// nth returns the index of the nth of the highest numbers. highestOf must have been called since
// the last change.
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

// nthIn returns the index of the nth number of this height in a block. The block's maximum must
// count more than n of them.
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

// join returns the higher of two peaks, or their sum if they are equally high.
func (p maximum) join(o maximum) maximum {
	switch {
	case o.height > p.height:
		return o
	case o.height == p.height:
		p.many += o.many
	}
	return p
}
