// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package memoryrelease

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestOnlyAtRest verifies that collections are forced twice after the collector has become idle,
// but neither while it is busy nor if there is little to return.
func TestOnlyAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, collected := reading{live: 100 << 20, held: 400 << 20}, 0
		locked := func(do func()) { mu.Lock(); defer mu.Unlock(); do() }
		ctx, cancel := context.WithCancel(t.Context())
		tick := time.NewTicker(period)
		go run(ctx, tick.C, func() (r reading) { locked(func() { r = now }); return r },
			func() { locked(func() { collected++; now.cycles++ }) })
		time.Sleep(time.Second) // between two ticks
		after := func(d time.Duration, want int, when string) {
			t.Helper()
			time.Sleep(d) // in virtual time
			locked(func() {
				if collected != want {
					t.Errorf("%s: collected %d times, want %d", when, collected, want)
				}
			})
		}
		grow := func() { locked(func() { now.cycles++ }) }
		for range 10 {
			grow()
			grow()
			after(period, 0, "while the collector works")
		}
		after(2*period, 1, "at rest")
		after(period, 1, "soon after the last time")
		after(pausePeriods*period, 2, "later")
		after(time.Hour, 2, "still at rest")
		grow()
		after(3*period, 3, "at rest again")
		for _, want := range []int{4, 4, 4, 5, 5, 5} {
			grow()
			after(period, want, "while the collector runs seldom")
		}
		locked(func() { now.cycles, now.held = now.cycles+1, 130<<20 })
		after(time.Hour, 5, "when little is held")
		locked(func() { now.made += now.live/4 + leastExcess })
		after(time.Hour, 6, "after large allocations since the last cycle")
		for range 10 {
			locked(func() { now.made += now.live/4 + leastExcess })
			after(period, 6, "while much is allocated")
		}
		cancel()
	})
}

// TestMemoryGoesBack verifies that memory retained by the collector is returned.
func TestMemoryGoesBack(t *testing.T) {
	busy := make([][]byte, 256)
	for i := range busy {
		busy[i] = make([]byte, 1<<20)
	}
	before := read()
	clear(busy)
	runtime.GC() // otherwise, the garbage still counts as live
	tick := make(chan time.Time)
	close(tick) // every receive succeeds immediately
	ctx, cancel := context.WithCancel(t.Context())
	run(ctx, tick, read, func() { debug.FreeOSMemory(); cancel() })
	if after := read(); after.held+128<<20 > before.held {
		t.Errorf("held %d MiB, %d before", after.held>>20, before.held>>20)
	}
}

// TestAProcessAtRestGivesBackWithinAMinute verifies that Run returns memory within a minute, and
// ends with its context.
func TestAProcessAtRestGivesBackWithinAMinute(t *testing.T) {
	busy := make([][]byte, 256)
	for i := range busy {
		busy[i] = make([]byte, 1<<20)
	}
	before := read()
	clear(busy)
	runtime.GC() // otherwise, the garbage still counts as live
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); Run(ctx) }()
		time.Sleep(time.Minute)
		cancel()
		<-ended
	})
	if after := read(); after.held+128<<20 > before.held {
		t.Errorf("held %d MiB, %d before", after.held>>20, before.held>>20)
	}
}
