// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import "maps"

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
