// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package memoryrelease returns memory to the system once a process is at rest. Go's collector runs
// when the heap has grown, so a process with little left to do keeps the memory of its busiest
// minute for up to two minutes, and the pages for longer.
package memoryrelease

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// period is the interval in which an idle process's collector runs at most idleCycles times,
// pausePeriods the minimum number of periods between two forced collections, and mostForced the
// number of forced collections until the collector runs by itself: a process that has become idle
// may drop some memory a little later. They bound the cost of collecting earlier than the collector
// would. With a small heap it runs now and then whatever the process does.
const period, idleCycles, pausePeriods, mostForced = 10 * time.Second, 1, 3, 2

// leastExcess is the amount of memory beyond its live objects a process may hold for good.
const leastExcess = 16 << 20

// Run gives memory back while the process is at rest, until the context ends.
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

// run decides at each tick whether to collect. Its access to the process is passed in.
//
// It collects if the collector has run at most idleCycles times since the tick before, the process
// holds clearly more than it uses, and the last forced collection was pausePeriods ticks ago. After
// mostForced such collections, it rests until the collector itself has run: only then can there be
// much more.
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

// read reads the three values from the runtime.
func read() reading {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	return reading{samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64() - samples[3].Value.Uint64()}
}
