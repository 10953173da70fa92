// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"slices"
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
	rest [][]uint64 // for every words-th entry: the terms from this entry to the end
}

type boundTerm struct {
	bound int64
	term  int32
}

// termSet is a set of terms: a list or, if that is longer than the words of all terms, a mask.
// Either way iterating over it costs at most one pass over the words.
type termSet struct {
	list []int32
	mask []uint64
}

// setBit and clearBit change one term's bit in a mask: term i is bit i%64 of word i/64. The mask
// must be long enough.
func setBit(words []uint64, i int32) { words[i>>6] |= 1 << (i & 63) }

func clearBit(words []uint64, i int32) { words[i>>6] &^= 1 << (i & 63) }

// clearMask removes a mask from left. A nil mask removes nothing.
func clearMask(left, mask []uint64) {
	for i := range mask {
		left[i] &^= mask[i]
	}
}

// add appends a term. It must not be called after pack.
func (s *termSet) add(term int32) { s.list = append(s.list, term) }

// pack chooses between list and mask. It must be called after the last add. words is the length of
// all masks.
func (s *termSet) pack(words int) {
	if len(s.list) >= words {
		s.mask = make([]uint64, words)
		for _, term := range s.list {
			setBit(s.mask, term)
		}
		s.list = nil
	}
}

// excludeFrom removes the terms of s from left, except for the terms of the set but, which may be
// nil: left &^= s &^ but. It first saves the terms that are in both left and but in w, and restores
// them afterwards, because s may be much longer than but.
func (s *termSet) excludeFrom(left []uint64, but *termSet, w *termSearch) {
	w.kept = w.kept[:0]
	// Save the terms of left that are excepted, since s may contain them.
	if but != nil {
		for _, term := range but.list {
			if left[term>>6]>>(term&63)&1 != 0 {
				w.kept = append(w.kept, term)
			}
		}
		for i := range but.mask {
			w.scratch[i] = left[i] & but.mask[i]
		}
	}

	for _, term := range s.list {
		clearBit(left, term)
	}
	clearMask(left, s.mask)
	for _, term := range w.kept {
		setBit(left, term)
	}

	if but != nil {
		for i := range but.mask {
			left[i] |= w.scratch[i]
		}
	}
}

// addTerm adds a term with the values listed by its requirement; many is the expected number of
// terms.
func (v *valueTerms) addTerm(term int32, r *labelRequirement, many int) {
	v.all.add(term)
	if v.byValue == nil {
		v.byValue = make(map[string]int32, many)
	}
	r.eachValue(func(value string) {
		number := v.byValue[value]
		if number == 0 {
			v.sets = append(v.sets, termSet{})
			number = int32(len(v.sets))
			v.byValue[value] = number
		}
		v.sets[number-1].add(term)
	})
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

// packBounds sorts the terms and prepares rest: for every words-th entry the mask of all entries
// from there to the end. An exclusion then clears one mask and fewer single bits than words. All
// masks together take at most about one word per term.
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

// excludeFrom removes the terms with a bound not below the number from left, or all of them if the
// value is not a number.
func (b *boundTerms) excludeFrom(left []uint64, number int64, isNumber bool, words int) {
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
		clearBit(left, b.list[from].term)
	}
	if from < len(b.list) {
		clearMask(left, b.rest[from/words])
	}
}
