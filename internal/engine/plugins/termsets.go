package plugins

import (
	"cmp"
	"slices"
)

// valueTerms are the terms that list values, and by value those that list it.
type valueTerms struct {
	all     termSet
	byValue map[string]int32 // its number in sets, from 1
	sets    []termSet
}

// boundTerms are the terms that require a number above a bound, the lowest bound first.
type boundTerms struct {
	list []boundTerm
	rest [][]uint64 // by words entries: those from there to the end
}

type boundTerm struct {
	bound int64
	term  int32
}

// termSet is a set of terms: a list or, where that is longer than the words of all terms, a mask.
type termSet struct {
	list []int32
	mask []uint64
}

func setBit(words []uint64, i int32)   { words[i>>6] |= 1 << (i & 63) }
func clearBit(words []uint64, i int32) { words[i>>6] &^= 1 << (i & 63) }

func clearMask(left, mask []uint64) {
	for i := range mask {
		left[i] &^= mask[i]
	}
}

func (s *termSet) add(term int32) { s.list = append(s.list, term) }

func (s *termSet) pack(words int) {
	if len(s.list) >= words {
		s.mask = make([]uint64, words)
		for _, term := range s.list {
			setBit(s.mask, term)
		}
		s.list = nil
	}
}

// excludeFrom removes the terms from left, except for those of but, which may be nil.
func (s *termSet) excludeFrom(left []uint64, but *termSet, w *termSearch) {
	w.kept = w.kept[:0]
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

func (v *valueTerms) packSets(words int) {
	v.all.pack(words)
	for i := range v.sets {
		v.sets[i].pack(words)
	}
}

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

// excludeFrom removes the terms from left whose bound is not below the number; all, if it is none.
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
