package cluster

import "maps"

// Shrunk returns the map, or a copy of it if its table is many times as large as its contents: a
// map whose entries are deleted keeps their memory. It is called after each addition or each
// deletion. most belongs to the map, and begins at 0: the most entries that the table has had.
func Shrunk[M ~map[K]V, K comparable, V any](m M, most *int) M {
	const worthIt, times = 1 << 12, 8
	*most = max(*most, len(m))
	if *most < worthIt || len(m) > *most/times {
		return m
	}
	*most = len(m)
	smaller := make(M, len(m))
	maps.Copy(smaller, m)
	return smaller
}
