// Package giveback returns memory to the system once a process has come to rest. Go's collector
// runs when the heap has grown, so a process with little left to do keeps what its busiest minute
// needed for up to two minutes, and the pages for longer.
package giveback

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// rest is in how long the collector has to have run seldom times at most, pause how many times as
// long passes between two collections, and times how many there are until the collector itself has
// run: a process that has come to rest may drop what it kept a little later. All bound what
// collecting costs that the collector itself would have put off. With a small heap it runs now and
// then whatever the process does.
const rest, seldom, pause, times = 10 * time.Second, 1, 3, 2

// little is how much more than its live objects a process may hold for good.
const little = 16 << 20

// Run gives memory back when the process is at rest, until the context ends.
func Run(ctx context.Context) {
	tick := time.NewTicker(rest)
	defer tick.Stop()
	run(ctx, tick.C, read, debug.FreeOSMemory)
}

// reading is what the runtime says of memory.
type reading struct {
	cycles uint64 // how often the collector has run
	live   uint64 // bytes of the heap that the last cycle found in use
	held   uint64 // bytes that the process has from the system
}

// run decides at each tick whether to collect, with everything that it asks of the process passed
// in.
//
// It collects when the collector has run seldom since the tick before, when the process holds
// clearly more than it uses, and when the last collection by it is pause ticks ago. Having done so
// as often as it may, it rests until the collector itself has run: only then can there be much
// more.
func run(ctx context.Context, tick <-chan time.Time, read func() reading, collect func()) {
	before, left := read(), times
	for paused := 0; ; paused-- {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		now := read()
		cycles := now.cycles - before.cycles
		if before = now; cycles > 0 {
			left = times
		}
		if cycles > seldom || left == 0 || paused > 0 || now.held <= now.live+now.live/4+little {
			continue
		}
		collect()
		before, left, paused = read(), left-1, pause
	}
}

// read asks the runtime for the three.
func read() reading {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	return reading{samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64() - samples[3].Value.Uint64()}
}
