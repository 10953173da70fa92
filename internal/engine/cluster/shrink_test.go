// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"runtime"
	"testing"
)

// TestShrunk verifies that a map that has lost nearly all of its entries frees their memory, and is
// copied rarely.
func TestShrunk(t *testing.T) {
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	m, most, copies := map[int]int{}, 0, 0
	before := heap()
	const many = 200_000
	for i := range many {
		m[i] = i
		m = Shrunk(m, &most)
	}
	full := heap() - before
	for i := range many - 5 {
		delete(m, i)
		was := most
		if m = Shrunk(m, &most); most < was {
			copies++
		}
	}
	left := heap() - before
	for i := many - 5; i < many; i++ {
		if m[i] != i {
			t.Errorf("%d has %d", i, m[i])
		}
	}
	if len(m) != 5 || left > full/16 || copies == 0 || copies > 5 {
		t.Errorf("%d entries are left in %d KiB of %d, after %d copies", len(m), left>>10, full>>10, copies)
	}
}
