// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// valueTerms holds the terms that list values: all of them, and the terms of each value. The sets
// are in a slice rather than in the map, because they are modified in place while the index is
// built.
type valueTerms struct {
	all     termSet
	byValue map[string]int32 // index of the value's set in sets, counted from 1
	sets    []termSet
}

// boundTerms are the terms that require a number above a bound, the lowest bound first. A node's
// number splits the list: the terms at the end, with a bound not below the number, cannot match.
//
//	bounds 1 3 3 7, number 3: the terms with 3, 3 and 7 are excluded
type boundTerms struct {
	list []boundTerm
	rest [][]uint64 // rest[i] is the mask of the terms in list[i*words:], where words is the length of a mask
}

type boundTerm struct {
	bound int64
	term  int32
}

// termSet is a set of terms: a list or, once the list has as many entries as a mask has words, a
// mask. Either way, iterating over it costs no more than a pass over a mask.
type termSet struct {
	list []int32
	mask []uint64
}

// setBit and clearBit change one term's bit in a mask: term i is bit i%64 of word i/64. The mask
// must be long enough.
func setBit(words []uint64, i int32) { words[i>>6] |= 1 << (i & 63) }

func clearBit(words []uint64, i int32) { words[i>>6] &^= 1 << (i & 63) }

// clearMask clears the bits of mask in remaining: remaining &^= mask. A nil mask clears nothing.
func clearMask(remaining, mask []uint64) {
	for i := range mask {
		remaining[i] &^= mask[i]
	}
}

// add appends a term. It must not be called after pack.
func (s *termSet) add(term int32) { s.list = append(s.list, term) }

// pack chooses between list and mask. It must be called after the last add. words is the length of
// every mask.
func (s *termSet) pack(words int) {
	if len(s.list) >= words {
		s.mask = make([]uint64, words)
		for _, term := range s.list {
			setBit(s.mask, term)
		}
		s.list = nil
	}
}

// excludeFrom clears the terms of s in remaining, but keeps the terms of except, which may be nil:
// remaining &^= s &^ except. The remaining terms that are also in except are first saved in w, and
// set again at the end, because s may be much longer than except.
func (s *termSet) excludeFrom(remaining []uint64, except *termSet, w *termSearch) {
	w.kept = w.kept[:0]
	// Save the excepted terms, since s may contain them.
	if except != nil {
		for _, term := range except.list {
			if remaining[term>>6]>>(term&63)&1 != 0 {
				w.kept = append(w.kept, term)
			}
		}
		for i := range except.mask {
			w.scratch[i] = remaining[i] & except.mask[i]
		}
	}

	for _, term := range s.list {
		clearBit(remaining, term)
	}
	clearMask(remaining, s.mask)
	for _, term := range w.kept {
		setBit(remaining, term)
	}

	if except != nil {
		for i := range except.mask {
			remaining[i] |= w.scratch[i]
		}
	}
}

// addTerm adds a term with the values listed by its requirement; many is the expected number of
// terms.
func (v *valueTerms) addTerm(term int32, r *rules.Requirement, many int) {
	v.all.add(term)
	if v.byValue == nil {
		v.byValue = make(map[string]int32, many)
	}
	for value := range r.DistinctValues() {
		number := v.byValue[value]
		if number == 0 {
			v.sets = append(v.sets, termSet{})
			number = int32(len(v.sets))
			v.byValue[value] = number
		}
		v.sets[number-1].add(term)
	}
}

// termsOf returns the terms that list a value, or nil.
func (v *valueTerms) termsOf(value string) *termSet {
	if number := v.byValue[value]; number > 0 {
		return &v.sets[number-1]
	}
	return nil
}

// packSets packs all sets, after the last addTerm.
func (v *valueTerms) packSets(words int) {
	v.all.pack(words)
	for i := range v.sets {
		v.sets[i].pack(words)
	}
}

// packBounds sorts the terms and prepares rest. An exclusion then clears at most words-1 single
// bits and one mask. All masks together take at most about one word per term.
func (b *boundTerms) packBounds(words int) {
	slices.SortFunc(b.list, func(x, y boundTerm) int { return cmp.Compare(x.bound, y.bound) })
	rest := make([]uint64, words)
	b.rest = make([][]uint64, len(b.list)/words+1)
	for i, t := range slices.Backward(b.list) {
		setBit(rest, t.term)
		if i%words == 0 {
			b.rest[i/words] = slices.Clone(rest)
		}
	}
}

// excludeFrom clears in remaining the terms with bound >= number, or all terms of b if the node's
// value is not a number.
func (b *boundTerms) excludeFrom(remaining []uint64, number int64, isNumber bool, words int) {
	from := 0
	if isNumber {
		from, _ = slices.BinarySearchFunc(b.list, number, func(t boundTerm, number int64) int {
			if t.bound < number {
				return -1
			}
			return 1
		})
	}
	for ; from < len(b.list) && from%words != 0; from++ {
		clearBit(remaining, b.list[from].term)
	}
	if from < len(b.list) {
		clearMask(remaining, b.rest[from/words])
	}
}
