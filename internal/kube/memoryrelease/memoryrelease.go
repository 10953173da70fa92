// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package memoryrelease returns memory to the operating system when a process becomes idle. Go's
// garbage collector runs when the heap has grown, so an idle process may keep garbage from its
// busiest time for up to two minutes, and the memory pages for even longer.
package memoryrelease

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// These constants bound the cost of forced collections. A process counts as idle if the collector
// has run at most idleCycles times within period, and little was allocated; with a small heap, the
// collector runs occasionally even in an idle process. At least pausePeriods periods pass between
// two forced collections. At most mostForced collections are forced until the collector runs by
// itself, or until the process has allocated much; there is more than one because some memory may
// become unused only a little later.
const period, idleCycles, pausePeriods, mostForced = 10 * time.Second, 1, 3, 2

// leastExcess is the amount of memory in excess of the live heap that is never returned.
const leastExcess = 16 << 20

// Run returns memory while the process is idle, until the context ends.
func Run(ctx context.Context) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	run(ctx, tick.C, read, debug.FreeOSMemory)
}

// reading holds the runtime's memory statistics.
type reading struct {
	cycles uint64 // number of collector cycles
	live   uint64 // heap bytes in use after the last cycle
	held   uint64 // bytes obtained from the system
	made   uint64 // bytes allocated so far
}

// run decides at each tick whether to call collect. The functions are parameters for the tests.
//
// It collects if the collector has run at most idleCycles times and little was allocated since the
// previous tick, the process holds clearly more memory than the live heap, or allocated much since
// the last cycle (so that the live heap may be much smaller by now), and the last forced collection
// was at least pausePeriods ticks ago. After mostForced such collections, it waits until the
// collector has run by itself, or until much was allocated, because otherwise there is little new
// garbage.
func run(ctx context.Context, tick <-chan time.Time, read func() reading, collect func()) {
	before, left := read(), mostForced
	made := before.made // at the last cycle or forced collection
	for paused := 0; ; paused-- {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		now := read()
		cycles, fresh := now.cycles-before.cycles, now.made-before.made
		if before = now; cycles > 0 {
			left, made = mostForced, now.made
		}
		excess := now.live/4 + leastExcess
		pays := now.made-made >= excess || left > 0 && now.held > now.live+excess
		if !pays || cycles > idleCycles || fresh >= excess || paused > 0 {
			continue
		}
		collect()
		before, left, paused = read(), max(left-1, 0), pausePeriods
		made = before.made
	}
}

// read reads the statistics from the runtime.
func read() reading {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) uint64 { return samples[i].Value.Uint64() }
	return reading{value(0), value(1), value(2) - value(3), value(4)}
}
