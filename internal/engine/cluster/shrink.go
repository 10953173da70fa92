package cluster

import "maps"

// How large a table or an array must be, and how many times as large as what is in it, to be worth
// replacing: small ones are not worth the trouble, and with a factor of four each copy is paid for
// by at least three times as many deletions.
const worthShrinking, timesTooLarge = 1 << 8, 4

// Shrunk returns the map, or a copy of it if its table is many times as large as its contents: a
// map whose entries are deleted keeps their memory. It is called after each addition or each
// deletion. most belongs to the map, and begins at 0: the most entries that the table has had.
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

// ShrunkList returns the list, or a copy of it if its array is many times as large as its contents.
// It is called when the list has become shorter.
func ShrunkList[S ~[]E, E any](list S) S {
	if cap(list) < worthShrinking || len(list) > cap(list)/timesTooLarge {
		return list
	}
	return append(S(nil), list...)
}
