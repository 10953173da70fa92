// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Up to fewRequirements requirements are checked one by one; more are worth an index.
const fewRequirements = 32

// termIndex finds the terms that match a node, among many. A pod may have thousands of terms to
// match against each node, so the index processes them in words of 64 terms. It passes over the
// words a few times for each relevant label of the node and for its name. The terms ruled out by
// missing labels are computed once for all nodes with the same missing labels.
//
// The search starts with a bit per term and only clears bits:
//
//	terms   0: zone In a   1: zone In b, disk Exists   2: zone NotIn a
//	node    zone=a, without disk
//	111 -> 101  term 1 needs the label disk           (needNoOther)
//	101 -> 101  zone=a is listed by term 0 ...        (valueIndex.equal)
//	101 -> 001  ... and excluded by term 2            (valueIndex.notIn; bit 0 is on the right)
type termIndex struct {
	terms   nodeTerms
	weights []int64       // by term; nil without weights
	bits    [][]uint64    // by bit: the terms with this bit in their weight
	words   int           // words in a set of terms; 0 if there are too few requirements for an index
	sound   []uint64      // the matchable terms
	keys    []*indexedKey // keys of the labels, by number
	byKey   map[string]*indexedKey
	name    indexedKey // the node's name, treated as a label
	spare   sync.Pool  // of *termSearch

	mutex sync.Mutex
	// lacking holds, by the numbers of the keys present on a node, the sound terms that need no
	// further keys.
	lacking map[string][]uint64
	// matched caches recent results of matchesAny for large indexes, because several plugins match
	// the same nodes.
	matched map[individual]bool
}

// mostLacking and mostMatched bound the maps lacking and matched: 256 sets of labels, each with a
// mask of all terms, and the results of 16,384 nodes. Only indexes of at least manyWords words
// cache results: 8 words are 449 terms or more.
const mostLacking, mostMatched, manyWords = 256, 1 << 14, 8

// indexedKey holds the requirements of the terms on one label. A term has at most one requirement
// with each operator.
type indexedKey struct {
	number int
	key    string
	needed []int32 // the terms that require the label
	all    []keyRequirement
	index  *valueIndex // replaces the list, if there are many requirements
}

// manyOfKey is the least number of requirements worth an index of one key.
const manyOfKey = 8

// keyRequirement is the requirement of one term on the label.
type keyRequirement struct {
	term int32
	*rules.Requirement
}

// valueIndex holds the requirements on the value of one label. It omits Exists: a node with the
// label always meets it, and needed excludes a node without it.
type valueIndex struct {
	equal   valueTerms
	notIn   valueTerms
	absent  termSet // terms with DoesNotExist
	greater boundTerms
	less    boundTerms // bounds are stored as complements (see excludeTerms)
}

// addTerm adds a term's requirement on the label. A node without the label meets NotIn and
// DoesNotExist; all other operators need the label.
func (k *indexedKey) addTerm(term int32, r *rules.Requirement) {
	k.all = append(k.all, keyRequirement{term, r})
	if r.Operator != selection.NotIn && r.Operator != selection.DoesNotExist {
		k.needed = append(k.needed, term)
	}
}

// buildIndex builds the index from the complete requirements.
func (k *indexedKey) buildIndex(words int) {
	if len(k.all) < manyOfKey {
		return
	}
	x := &valueIndex{}
	for _, r := range k.all {
		switch r.Operator {
		case selection.In:
			x.equal.addTerm(r.term, r.Requirement, len(k.all))
		case selection.NotIn:
			x.notIn.addTerm(r.term, r.Requirement, len(k.all))
		case selection.DoesNotExist:
			x.absent.add(r.term)
		case selection.GreaterThan:
			x.greater.list = append(x.greater.list, boundTerm{r.Bound(), r.term})
		case selection.LessThan:
			x.less.list = append(x.less.list, boundTerm{^r.Bound(), r.term})
		}
	}

	// The list all is no longer needed, and would only cost memory.
	k.all, k.index = nil, x
	x.equal.packSets(words)
	x.notIn.packSets(words)
	x.absent.pack(words)
	x.greater.packBounds(words)
	x.less.packBounds(words)
}

// excludeTerms removes the terms not matched by a node with this value of the label. It does not
// apply to nodes without the label, which needNoOther covers.
func (k *indexedKey) excludeTerms(w *termSearch, value string) {
	if k.index != nil {
		k.index.excludeTerms(w, value)
	}
	for _, r := range k.all {
		if !r.MeetsValue(value, true) {
			clearBit(w.left, r.term)
		}
	}
}

// excludeTerms is the indexed version. Lt is stored as Gt of the complements: number < bound is the
// same as ^number > ^bound, including the lowest number, which cannot be negated.
func (k *valueIndex) excludeTerms(w *termSearch, value string) {
	k.equal.all.excludeFrom(w.left, k.equal.termsOf(value), w)
	if of := k.notIn.termsOf(value); of != nil {
		of.excludeFrom(w.left, nil, w)
	}
	k.absent.excludeFrom(w.left, nil, w)
	if len(k.greater.list)+len(k.less.list) > 0 {
		number, err := strconv.ParseInt(value, 10, 64)
		k.greater.excludeFrom(w.left, number, err == nil, len(w.left))
		k.less.excludeFrom(w.left, ^number, err == nil, len(w.left))
	}
}

// indexTerms prepares terms. weights, by term, may be nil. If there are few requirements, the terms
// are kept unindexed, and words stays 0. Weights are stored by their bits, so that the sum over all
// matching terms takes one bit count per word and bit of the weights (see sumWeights).
func indexTerms(terms nodeTerms, weights []int64) *termIndex {
	x := &termIndex{terms: terms, weights: weights}
	requirements := 0
	for i := range terms {
		requirements += len(terms[i].wanted) + len(terms[i].fields)
	}

	// x.words stays 0, which marks the terms as unindexed for the other methods.
	if requirements <= fewRequirements {
		return x
	}
	x.words = (len(terms) + 63) / 64
	x.sound, x.byKey, x.lacking = make([]uint64, x.words), map[string]*indexedKey{}, map[string][]uint64{}
	x.spare.New = func() any { return &termSearch{left: make([]uint64, x.words), scratch: make([]uint64, x.words)} }
	// Broken and unmatchable terms never get a bit in sound.
	for i := range terms {
		x.addTerm(int32(i), &terms[i])
	}

	for _, k := range x.keys {
		k.buildIndex(x.words)
	}
	x.name.buildIndex(x.words)
	for term, weight := range weights {
		// Weights are stored as a column per bit; see sumWeights.
		for b := range 64 {
			if weight>>b&1 == 0 {
				continue
			}
			for len(x.bits) <= b {
				x.bits = append(x.bits, make([]uint64, x.words))
			}
			setBit(x.bits[b], int32(term))
		}
	}

	return x
}

// addTerm indexes one term. An unmatchable term is not added to sound.
func (x *termIndex) addTerm(term int32, t *nodeTerm) {
	if t.broken || slices.ContainsFunc(t.fields, func(f fieldRequirement) bool { return !f.name && !f.match("") }) {
		return
	}
	setBit(x.sound, term)
	for r := range t.wanted {
		k := x.byKey[t.wanted[r].Key]
		if k == nil {
			k = &indexedKey{number: len(x.keys), key: t.wanted[r].Key}
			x.keys, x.byKey[k.key] = append(x.keys, k), k
		}
		k.addTerm(term, &t.wanted[r])
	}
	for _, r := range namesWanted(t.fields) {
		x.name.addTerm(term, &r)
	}
}

// termSearch is the working state of a search for a node's terms. It is reused, so that most
// searches do not allocate.
type termSearch struct {
	// left are the terms that may still match; scratch and kept belong to excludeFrom.
	left, scratch []uint64
	kept          []int32
	// has holds the node's labels with a key used by terms, sorted by the number of the key.
	// numbers holds these numbers, encoded as a key of the map lacking.
	has     []labelOf
	numbers []byte
}

// labelOf is a label of the node with a key used by terms.
type labelOf struct {
	*indexedKey
	value string
}

// findMatching finds the matching terms, in the field left of the result. The caller returns the
// result to spare.
func (x *termIndex) findMatching(n *cluster.Node) *termSearch {
	w := x.spare.Get().(*termSearch)
	w.findLabels(x, n)
	copy(w.left, x.needNoOther(w))
	for i := range w.has {
		w.has[i].excludeTerms(w, w.has[i].value)
	}
	x.name.excludeTerms(w, n.Name)
	return w
}

// findLabels finds the node's labels with a key used by terms, sorted by number. It iterates over
// the smaller set: the labels of the node or the keys of the terms.
func (w *termSearch) findLabels(x *termIndex, n *cluster.Node) {
	w.has, w.numbers = w.has[:0], w.numbers[:0]
	if len(x.keys) <= len(n.Labels.Map) {
		for _, k := range x.keys {
			if value, has := n.Lookup(k.key); has {
				w.has = append(w.has, labelOf{k, value})
			}
		}
	} else {
		for key, value := range n.Labels.Map {
			if k := x.byKey[key]; k != nil {
				w.has = append(w.has, labelOf{k, value})
			}
		}
		// LabelSets never include the host name.
		if k := x.byKey[v1.LabelHostname]; k != nil && n.Hostname.Known {
			w.has = append(w.has, labelOf{k, n.Hostname.Value})
		}
		slices.SortFunc(w.has, func(a, b labelOf) int { return a.number - b.number })
	}

	for i := range w.has {
		w.numbers = binary.AppendUvarint(w.numbers, uint64(w.has[i].number))
	}
}

// needNoOther returns the terms not excluded by missing labels, for a node that has exactly the
// labels in w.has, and no other label used by terms. The result is shared: the caller must copy it.
func (x *termIndex) needNoOther(w *termSearch) []uint64 {
	x.mutex.Lock()
	defer x.mutex.Unlock()
	if left, known := x.lacking[string(w.numbers)]; known {
		return left
	}

	// keys and has are in the same order, so one pass finds the missing keys.
	left, next := slices.Clone(x.sound), 0
	for _, k := range x.keys {
		if next < len(w.has) && w.has[next].indexedKey == k {
			next++
			continue
		}
		for _, term := range k.needed {
			clearBit(left, term)
		}
	}

	if len(x.lacking) >= mostLacking {
		clear(x.lacking)
	}
	x.lacking[string(w.numbers)] = left
	return left
}

// matchesAny reports whether any of the terms matches. It is safe for concurrent use.
func (x *termIndex) matchesAny(n *cluster.Node) bool {
	if x.words == 0 {
		return x.terms.match(n)
	}
	if x.words < manyWords {
		return x.anyMatches(n)
	}

	asked := individualOf(n)
	x.mutex.Lock()
	matches, known := x.matched[asked]
	x.mutex.Unlock()
	if known {
		return matches
	}

	// Search outside the lock: other goroutines may search for other nodes meanwhile.
	matches = x.anyMatches(n)
	x.mutex.Lock()
	defer x.mutex.Unlock()
	if x.matched == nil || len(x.matched) >= mostMatched {
		x.matched = map[individual]bool{}
	}

	x.matched[asked] = matches
	return matches
}

// anyMatches is matchesAny by the index, without the cache.
func (x *termIndex) anyMatches(n *cluster.Node) bool {
	w := x.findMatching(n)
	defer x.spare.Put(w)
	return slices.ContainsFunc(w.left, func(word uint64) bool { return word != 0 })
}

// sumWeights sums the weights of the matching terms. With weights 5 (101) and 4 (100) of two
// matching terms, bit 0 counts once and bit 2 twice: 1*1 + 2*4 = 9.
func (x *termIndex) sumWeights(n *cluster.Node) (sum int64) {
	if x.words == 0 {
		for i := range x.terms {
			if x.terms[i].match(n) {
				sum += x.weights[i]
			}
		}
		return sum
	}
	w := x.findMatching(n)
	defer x.spare.Put(w)
	for b, mask := range x.bits {
		for i := range mask {
			sum += int64(bits.OnesCount64(w.left[i]&mask[i])) << b
		}
	}
	return sum
}
