// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"hash/maphash"
	"math/bits"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// digest is a 128-bit hash that represents the hashed contents: in practice, no two different
// contents have the same digest. Decisions compare digests instead of contents.
type digest [2]uint64

// The two seeds are chosen at random at startup, so that colliding contents cannot be prepared.
var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// hasher folds values into a digest. Successive values must stay distinguishable: values of
// variable length are preceded by their length, and optional values by a marker. The zero value is
// ready. A hasher may be copied freely: it is two words.
//
// For example, ["ab", "c"] and ["a", "bc"] would be equal without the lengths.
type hasher struct{ a, b uint64 }

// sum returns the digest of the values added so far; more may be added.
func (h *hasher) sum() digest { return digest{h.a, h.b} }

// addWord folds in one word. Both halves of the digest include the word, mixed differently, so that
// a collision in one half is not a collision in the other.
func (h *hasher) addWord(v uint64) {
	h.a = foldWord(h.a^v, 0x9e3779b97f4a7c15)
	h.b = foldWord(h.b^bits.RotateLeft64(v, 32), 0xd6e8feb86659fd93)
}

// foldWord mixes by a multiplication to 128 bits, like wyhash.
func foldWord(x, k uint64) uint64 {
	hi, lo := bits.Mul64(x^0xa0761d6478bd642f, k)
	return hi ^ lo
}

func (h *hasher) addInt(v int64) { h.addWord(uint64(v)) }

// addBool does not use 0, so that false is never mistaken for the length of an empty value.
func (h *hasher) addBool(v bool) {
	if v {
		h.addWord(1)
	} else {
		h.addWord(2)
	}
}

// addString hashes the length and the text, or only the length of an empty string.
func (h *hasher) addString(s string) {
	h.addWord(uint64(len(s)))
	if s != "" {
		h.a = foldWord(h.a^maphash.String(seeds[0], s), 0x9e3779b97f4a7c15)
		h.b = foldWord(h.b^maphash.String(seeds[1], s), 0xd6e8feb86659fd93)
	}
}

func (h *hasher) addBytes(b []byte) { h.addString(string(b)) }

// unordered folds values in no particular order, such as the entries of a map. It adds up the
// digests of the entries, so that their order makes no difference.
type unordered struct{ a, b uint64 }

func (u *unordered) add(h hasher) { u.a += h.a; u.b += h.b }

// addSet folds in n unordered values.
func (h *hasher) addSet(n int, u unordered) {
	h.addWord(uint64(n))
	h.a = foldWord(h.a^u.a, 0x9e3779b97f4a7c15)
	h.b = foldWord(h.b^u.b, 0xd6e8feb86659fd93)
}

// stringMap hashes a map independently of the iteration order; nil and empty are equal.
func (h *hasher) stringMap(m map[string]string) {
	if len(m) == 0 { // skips the cost of starting an iteration over a map
		h.addWord(0)
		return
	}
	var all unordered
	for k, v := range m {
		var one hasher
		one.addString(k)
		one.addString(v)
		all.add(one)
	}
	h.addSet(len(m), all)
}

// addStrings hashes a list in its order.
func (h *hasher) addStrings(list []string) {
	h.addWord(uint64(len(list)))
	for _, s := range list {
		h.addString(s)
	}
}

// addResources hashes amounts, not their spelling: 1 and 1000m CPU are equal. The common resources
// are looked up by name, which is faster than iterating over the map. more is set if the list has
// other resources.
func (h *hasher) addResources(list v1.ResourceList) (more bool) {
	h.addWord(uint64(len(list)))
	left := len(list)
	for _, name := range [2]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if left == 0 {
			return false
		}
		quantity, ok := list[name]
		h.addBool(ok)
		if ok {
			h.addAmount(name, quantity)
			left--
		}
	}

	if left == 0 {
		return false
	}
	var all unordered
	for name, quantity := range list {
		if name == v1.ResourceCPU || name == v1.ResourceMemory {
			continue
		}
		var one hasher
		one.addString(string(name))
		one.addAmount(name, quantity)
		all.add(one)
	}

	h.addSet(left, all)
	return true
}

// addAmount hashes a quantity as counted by decisions, and the remainder lost by rounding: amounts
// are rounded after adding them up, so ten containers of 100u CPU request less than ten containers
// of 1m.
func (h *hasher) addAmount(name v1.ResourceName, quantity resource.Quantity) {
	counted := rules.Amount(name, quantity)
	h.addInt(counted)

	whole := resource.NewQuantity(counted, resource.DecimalSI)
	if name == v1.ResourceCPU {
		whole = resource.NewMilliQuantity(counted, resource.DecimalSI)
	}
	// Add the remainder as text, since it is rare.
	if quantity.Cmp(*whole) != 0 {
		rest := quantity.DeepCopy()
		rest.Sub(*whole)
		rest.Format = resource.DecimalSI
		h.addString(rest.String())
	}
}

// labelSelector hashes a selector. nil, which selects nothing, differs from an empty selector,
// which selects everything.
func (h *hasher) labelSelector(s *metav1.LabelSelector) {
	h.addBool(s != nil)
	if s == nil {
		return
	}
	h.stringMap(s.MatchLabels)
	h.addWord(uint64(len(s.MatchExpressions)))
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		h.addString(e.Key)
		h.addString(string(e.Operator))
		h.addStrings(e.Values)
	}
}

// optionalString hashes an optional value; a missing value differs from a zero value.
func (h *hasher) optionalString(v *string) {
	h.addBool(v != nil)
	if v != nil {
		h.addString(*v)
	}
}

func (h *hasher) optionalInt32(v *int32) {
	h.addBool(v != nil)
	if v != nil {
		h.addInt(int64(*v))
	}
}
