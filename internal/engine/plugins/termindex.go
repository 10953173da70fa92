package plugins

import (
	"math/bits"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// fewTerms are looked at one by one; more are worth an index. Tests lower it.
var fewTerms = 32

// termIndex finds which of many terms match a node. It looks up each key once and goes through all
// terms in words of 64: a pod may come with thousands of terms, and each node is asked about.
type termIndex struct {
	terms nodeTerms
	words int
	keys  []indexedKey
	sound []uint64 // terms that are not broken
	loose [][]int  // by term: its requirements that are in no indexedKey, since few terms have the key
	spare sync.Pool
}

// indexedKey is one requirement of each of many terms, all on one key.
type indexedKey struct {
	key string
	// usual are the terms that this key does not exclude if no term lists the node's value; absent
	// are those that it does not exclude if the node has no value.
	usual, absent []uint64
	listed        map[string][]int32 // by value: the terms for which it makes the difference
	bounded       []boundedTerm
}

type boundedTerm struct {
	term int32
	*labelRequirement
}

func indexTerms(terms nodeTerms) *termIndex {
	x := &termIndex{terms: terms, words: (len(terms) + 63) / 64, loose: make([][]int, len(terms))}
	if len(terms) <= fewTerms {
		return x
	}
	x.spare.New = func() any { two := make([]uint64, 2*x.words); return &two }
	x.sound = make([]uint64, x.words)
	type place struct {
		key string
		nth int // of the term's requirements on the key
	}
	type member struct{ term, requirement int }
	members := map[place][]member{}
	var order []place
	for i := range terms {
		if terms[i].broken {
			continue
		}
		set(x.sound, i)
		nth := map[string]int{}
		for r := range terms[i].wanted {
			key := terms[i].wanted[r].key
			at := place{key, nth[key]}
			nth[key]++
			if members[at] == nil {
				order = append(order, at)
			}
			members[at] = append(members[at], member{i, r})
		}
	}
	for _, at := range order {
		const perTerm = 16 // matching one requirement takes as long as going through this many words
		if list := members[at]; perTerm*len(list) < x.words {
			for _, m := range list {
				x.loose[m.term] = append(x.loose[m.term], m.requirement)
			}
			continue
		}
		k := indexedKey{at.key, make([]uint64, x.words), make([]uint64, x.words), map[string][]int32{}, nil}
		copy(k.usual, x.sound)
		copy(k.absent, x.sound)
		for _, m := range members[at] {
			k.add(m.term, &terms[m.term].wanted[m.requirement])
		}
		x.keys = append(x.keys, k)
	}
	return x
}

func set(words []uint64, i int)   { words[i>>6] |= 1 << (i & 63) }
func unset(words []uint64, i int) { words[i>>6] &^= 1 << (i & 63) }

func (k *indexedKey) add(term int, r *labelRequirement) {
	switch r.operator {
	case selection.DoesNotExist:
		unset(k.usual, term)
		return
	case selection.NotIn:
	case selection.Exists:
		unset(k.absent, term)
		return
	default:
		unset(k.usual, term)
		unset(k.absent, term)
		if r.operator != selection.In {
			k.bounded = append(k.bounded, boundedTerm{int32(term), r})
			return
		}
	}
	r.each(func(value string) { k.listed[value] = append(k.listed[value], int32(term)) })
}

// narrow removes the terms from left that this key excludes for the node.
func (k *indexedKey) narrow(left, scratch []uint64, n *cluster.Node) {
	value, has := n.Lookup(k.key)
	these := k.absent
	if has {
		these = k.usual
		if listed := k.listed[value]; len(listed)+len(k.bounded) > 0 {
			these = scratch
			copy(these, k.usual)
			for _, term := range listed {
				these[term>>6] ^= 1 << (term & 63)
			}
			if number, err := strconv.ParseInt(value, 10, 64); err == nil {
				for _, t := range k.bounded {
					if t.allows(number) {
						set(these, int(t.term))
					}
				}
			}
		}
	}
	for i := range left {
		left[i] &= these[i]
	}
}

// each calls f with every term that matches, until that returns false.
func (x *termIndex) each(n *cluster.Node, f func(term int) bool) {
	if x.sound == nil {
		for i := range x.terms {
			if x.terms[i].match(n) && !f(i) {
				return
			}
		}
		return
	}
	space := x.spare.Get().(*[]uint64)
	defer x.spare.Put(space)
	left, scratch := (*space)[:x.words], (*space)[x.words:]
	copy(left, x.sound)
	for i := range x.keys {
		x.keys[i].narrow(left, scratch, n)
	}
	for w, word := range left {
		for ; word != 0; word &= word - 1 {
			i := w<<6 + bits.TrailingZeros64(word)
			if x.rest(i, n) && !f(i) {
				return
			}
		}
	}
}

// rest tells whether the requirements of a term match that are in no indexedKey.
func (x *termIndex) rest(term int, n *cluster.Node) bool {
	t := &x.terms[term]
	for _, r := range x.loose[term] {
		if !t.wanted[r].match(n) {
			return false
		}
	}
	return t.matchFields(n)
}

// match tells whether any of the terms matches.
func (x *termIndex) match(n *cluster.Node) (matches bool) {
	x.each(n, func(int) bool { matches = true; return false })
	return matches
}
