// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import "maps"

// Set is a set of pointers, found by a hash of a key contained in the values themselves. It takes
// half of the memory of a map, which also stores the keys. The zero value is empty. It must not be
// changed while All yields.
type Set[V any] struct {
	// Each value is at the place of its hash, or at a later place without a free place in between.
	// A hash of 0 marks a free place.
	hashes []uint32
	values []*V
	count  int
}

const leastSet = 8

// Len returns the number of values.
func (s *Set[V]) Len() int { return s.count }

// placeOf returns the place of a hash: the first possible place of its value.
func (s *Set[V]) placeOf(hash uint32) int { return int(uint64(hash) * uint64(len(s.hashes)) >> 32) }

// nextPlace returns the place after the given one. After the last place, it returns the first.
func (s *Set[V]) nextPlace(at int) int {
	if at++; at < len(s.hashes) {
		return at
	}
	return 0
}

// distance returns the number of steps from one place forward to another.
func (s *Set[V]) distance(from, to int) int {
	if to >= from {
		return to - from
	}
	return to - from + len(s.hashes)
}

// ShortHash returns the hash used by a Set; never 0.
func ShortHash(hash uint64) uint32 { return max(1, uint32(hash>>32)^uint32(hash)) }

// Find returns the value that has this hash and satisfies match, or nil.
func (s *Set[V]) Find(hash uint32, match func(*V) bool) *V {
	if at := s.find(hash, match); at >= 0 {
		return s.values[at]
	}
	return nil
}

// First returns a value that has this hash, or nil.
func (s *Set[V]) First(hash uint32) *V { return s.Find(hash, func(*V) bool { return true }) }

func (s *Set[V]) find(hash uint32, match func(*V) bool) int {
	if s.count == 0 {
		return -1
	}
	for at := s.placeOf(hash); s.hashes[at] != 0; at = s.nextPlace(at) {
		if s.hashes[at] == hash && match(s.values[at]) {
			return at
		}
	}
	return -1
}

// Add adds a value, which must not be in the set.
func (s *Set[V]) Add(hash uint32, value *V) {
	// The arrays grow by a quarter when they are four fifths full; finding a value then takes three
	// probes.
	if 5*(s.count+1) > 4*len(s.hashes) {
		s.resize(max(leastSet, len(s.hashes)+len(s.hashes)/4))
	}
	s.put(hash, value)
}

func (s *Set[V]) put(hash uint32, value *V) {
	at := s.placeOf(hash)
	for s.hashes[at] != 0 {
		at = s.nextPlace(at)
	}
	s.hashes[at], s.values[at] = hash, value
	s.count++
}

func (s *Set[V]) resize(places int) {
	before := *s
	*s = Set[V]{hashes: make([]uint32, places), values: make([]*V, places)}
	for at, hash := range before.hashes {
		if hash != 0 {
			s.put(hash, before.values[at])
		}
	}
}

// Remove removes and returns the value that Find would return, or nil.
func (s *Set[V]) Remove(hash uint32, match func(*V) bool) *V {
	gap := s.find(hash, match)
	if gap < 0 {
		return nil
	}
	removed := s.values[gap]
	for at := s.nextPlace(gap); s.hashes[at] != 0; at = s.nextPlace(at) {
		// Move a value into the gap unless the gap precedes the place of its hash.
		if s.distance(s.placeOf(s.hashes[at]), at) >= s.distance(gap, at) {
			s.hashes[gap], s.values[gap] = s.hashes[at], s.values[at]
			gap = at
		}
	}
	s.hashes[gap], s.values[gap] = 0, nil
	s.count--
	s.shrink()
	return removed
}

// shrink releases arrays many times larger than their contents; see Shrunk.
func (s *Set[V]) shrink() {
	if len(s.hashes) >= worthShrinking && s.count < len(s.hashes)/(2*timesTooLarge) {
		s.resize(max(leastSet, 2*s.count))
	}
}

// DeleteFunc removes all values that satisfy match.
//
// The remaining values are moved into arrays of the right size in one step. Adding them one by one
// to a growing set would be slow: they come in the order of their hashes, so each small array would
// fill from its start, with long probe sequences.
func (s *Set[V]) DeleteFunc(match func(*V) bool) {
	for at, value := range s.values {
		if value != nil && match(value) {
			s.hashes[at], s.values[at] = 0, nil
			s.count--
		}
	}
	s.resize(max(leastSet, s.count+s.count/2))
}

// All yields the values in any order.
func (s *Set[V]) All(yield func(*V) bool) {
	for _, value := range s.values {
		if value != nil && !yield(value) {
			return
		}
	}
}

// worthShrinking is the minimum size of a table or an array worth replacing, and timesTooLarge the
// minimum ratio of its size to the size of its contents. With a ratio of four, each copied entry is
// preceded by at least three deletions.
const worthShrinking, timesTooLarge = 1 << 8, 4

// Shrunk returns the map, or a copy of it if its table is many times larger than its contents:
// deleting entries does not free their memory. Call it after each addition or each deletion. most
// belongs to the map: it is the maximum number of entries in the table so far, and starts at 0.
func Shrunk[M ~map[K]V, K comparable, V any](m M, most *int) M {
	*most = max(*most, len(m))
	if *most < worthShrinking || len(m) > *most/timesTooLarge {
		return m
	}
	*most = len(m)
	smaller := make(M, len(m))
	maps.Copy(smaller, m)
	return smaller
}

// ShrunkList returns the list, or a copy of it if its array is many times larger than its contents.
// Call it after shortening the list.
func ShrunkList[S ~[]E, E any](list S) S {
	if cap(list) < worthShrinking || len(list) > cap(list)/timesTooLarge {
		return list
	}
	return append(S(nil), list...)
}
