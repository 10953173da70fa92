// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/world/virtual"
)

var (
	seeds = flag.Int("eviction.seeds", 10_000, "number of random lives of a cluster to run")
	seed  = flag.Uint64("eviction.seed", 0, "run only this seed, and tell what happens")
)

// TestEveryLifeEndsRight runs lives of a small cluster with every possible failure. It verifies
// that at the end, every pod to be evicted has been deleted, that no pod was deleted without a
// reason, and that no pod was deleted later than the faults excuse.
func TestEveryLifeEndsRight(t *testing.T) {
	if *seed != 0 {
		w := New(*seed)
		w.Trace = func(at time.Time, what string) { t.Logf("%9.3fs %s", at.Sub(Begin).Seconds(), what) }
		for _, wrong := range Churn(w) {
			t.Error(wrong)
		}
		return
	}
	var deleted, refused, averted atomic.Int64
	var mu sync.Mutex
	injected := map[virtual.Injection]int{}
	eachSeed(*seeds, func(seed uint64) bool {
		w := New(seed)
		wrong := Churn(w)
		deleted.Add(int64(w.Requests.Deleted))
		refused.Add(int64(w.Requests.Refusals))
		mu.Lock()
		virtual.Add(injected, w.Requests.Line.Injected)
		mu.Unlock()
		averted.Add(int64(w.Core().Stats().Averted))
		if len(wrong) > 0 {
			t.Errorf("seed %d: %s\n  again with: go test ./eviction -run %s -v -eviction.seed=%d", seed, wrong[0], t.Name(), seed)
		}
		return !t.Failed()
	})
	t.Logf("%d lives: %d pods evicted, %d requests failed, %d evictions averted by the live state%s",
		*seeds, deleted.Load(), refused.Load(), averted.Load(), virtual.Summary(injected))
	if deleted.Load() == 0 || refused.Load() == 0 || averted.Load() == 0 {
		t.Error("the lives are too quiet to show anything")
	}
}

// TestFlappingTaintEndsRight verifies that a pod is evicted exactly if its node's taint requires
// it, although the taint is removed and added again at random intervals, watches lag, and deletes
// fail.
func TestFlappingTaintEndsRight(t *testing.T) { flaps(t, 100_000, Flap) }

// TestFlappingDeviceTaintEndsRight verifies the same for taints of devices, which are in slices or
// belong to rules. The rules are created, deleted, or lose their effect.
func TestFlappingDeviceTaintEndsRight(t *testing.T) { flaps(t, 50_000, FlapDevice) }

func flaps(t *testing.T, times int, flap func(*World) []string) {
	var deleted atomic.Int64
	eachSeed(times, func(seed uint64) bool {
		w := New(seed)
		wrong := flap(w)
		deleted.Add(int64(w.Requests.Deleted))
		if len(wrong) > 0 {
			t.Errorf("seed %d: %s", seed, wrong[0])
		}
		return !t.Failed()
	})
	t.Logf("of %d pods %d were evicted", times, deleted.Load())
	if deleted.Load() == 0 {
		t.Error("the flaps show nothing")
	}
}

// eachSeed calls run with the seeds from 1 to n, in parallel on all processors, until run returns
// false.
func eachSeed(n int, run func(seed uint64) (goOn bool)) {
	var next atomic.Uint64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !stop.Load() {
				seed := next.Add(1)
				if seed > uint64(n) {
					return
				}
				if !run(seed) {
					stop.Store(true)
				}
			}
		})
	}
	wg.Wait()
}
