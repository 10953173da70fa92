// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSetIsAMap verifies that after the same operations, a set and a map have the same contents,
// even if many hashes are equal or at the end of the arrays.
func TestSetIsAMap(t *testing.T) {
	type value struct{ key int }
	for _, hashOf := range []func(int) uint32{
		func(key int) uint32 { return ShortHash(uint64(key) * 0x9e3779b97f4a7c15) },
		func(key int) uint32 { return uint32(key%3 + 1) },
		func(key int) uint32 { return 1<<32 - 1 - uint32(key%50) },
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		var s Set[value]
		want := map[int]*value{}
		for i := range 20_000 {
			key := rng.IntN(400)
			is := func(v *value) bool { return v.key == key }
			if found := s.Find(hashOf(key), is); found != want[key] {
				t.Fatalf("step %d: found %v, want %v", i, found, want[key])
			}
			switch falling := i/2000%2 == 1; {
			case want[key] == nil && (!falling || rng.IntN(4) == 0):
				want[key] = &value{key}
				s.Add(hashOf(key), want[key])
			case want[key] != nil && falling:
				if removed := s.Remove(hashOf(key), is); removed != want[key] {
					t.Fatalf("step %d: removed %v, want %v", i, removed, want[key])
				}
				delete(want, key)
			}
			if i%1000 == 999 {
				all := slices.SortedFunc(s.All, func(a, b *value) int { return a.key - b.key })
				if s.Len() != len(want) || len(all) != len(want) || fmt.Sprint(slices.Sorted(maps.Keys(want))) != fmt.Sprint(keys(all)) {
					t.Fatalf("step %d: %d values, want %d", i, s.Len(), len(want))
				}
			}
		}

		s.DeleteFunc(func(v *value) bool { return v.key%2 == 0 })
		for key, v := range want {
			if found := s.Find(hashOf(key), func(v *value) bool { return v.key == key }); found != nil != (key%2 == 1) || found != nil && found != v {
				t.Errorf("of those with odd keys alone %d is %v", key, found)
			}
		}
	}
}

func keys[V interface{ ~struct{ key int } }](list []*V) (keys []int) {
	for _, v := range list {
		keys = append(keys, struct{ key int }(*v).key)
	}
	return keys
}

// TestSetGivesBackMemory verifies that a set has small arrays after its values have been removed.
func TestSetGivesBackMemory(t *testing.T) {
	var s Set[int]
	for i := range 10_000 {
		s.Add(1+uint32(i)*400_000, &i)
	}
	for i := range 9_990 {
		if s.Remove(1+uint32(i)*400_000, func(v *int) bool { return *v == i }) == nil {
			t.Fatalf("%d is not there", i)
		}
	}
	if places := len(s.hashes); places >= worthShrinking {
		t.Errorf("%d places for %d values", places, s.Len())
	}
}

// TestDeletingFromASetMovesEachValueOnce verifies that DeleteFunc moves each value once. Values are
// moved in the order of their hashes, so in gradually growing arrays each value would be added
// behind all previous values.
func TestDeletingFromASetMovesEachValueOnce(t *testing.T) {
	var s Set[int]
	for i := range 10_000 {
		s.Add(ShortHash(uint64(i)*0x9e3779b97f4a7c15), &i)
	}
	arrays := testing.AllocsPerRun(1, func() { s.DeleteFunc(func(v *int) bool { return *v%10 == 0 }) })
	if arrays > 2 || s.Len() != 9_000 {
		t.Errorf("%v arrays were made for %d values", arrays, s.Len())
	}
}
