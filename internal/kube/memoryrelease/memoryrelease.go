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
// has run at most idleCycles times within period; with a small heap, it runs occasionally even in
// an idle process. At least pausePeriods periods pass between two forced collections. At most
// mostForced collections are forced until the collector runs by itself; there is more than one
// because some memory may become unused only a little later.
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
}

// run decides at each tick whether to call collect. The functions are parameters for the tests.
//
// It collects if the collector has run at most idleCycles times since the previous tick, the
// process holds clearly more memory than the live heap, and the last forced collection was at least
// pausePeriods ticks ago. After mostForced such collections, it waits until the collector has run
// by itself, because otherwise there is little new garbage.
func run(ctx context.Context, tick <-chan time.Time, read func() reading, collect func()) {
	before, left := read(), mostForced
	for paused := 0; ; paused-- {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		now := read()
		cycles := now.cycles - before.cycles
		if before = now; cycles > 0 {
			left = mostForced
		}
		if cycles > idleCycles || left == 0 || paused > 0 || now.held <= now.live+now.live/4+leastExcess {
			continue
		}
		collect()
		before, left, paused = read(), left-1, pausePeriods
	}
}

// read reads the statistics from the runtime.
func read() reading {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	return reading{samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64() - samples[3].Value.Uint64()}
}
