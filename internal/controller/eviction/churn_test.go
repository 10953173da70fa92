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

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/eviction/evictiontest"
)

var (
	seeds = flag.Int("eviction.seeds", 10_000, "number of random lives of a cluster to run")
	seed  = flag.Uint64("eviction.seed", 0, "run only this seed, and tell what happens")
)

// TestEveryLifeEndsRight runs lives of a small cluster with every possible failure. At the end,
// every pod that must be evicted has been deleted, none was deleted without a reason, and none
// later than the faults excuse.
func TestEveryLifeEndsRight(t *testing.T) {
	if *seed != 0 {
		w := evictiontest.New(*seed)
		w.Trace = func(at time.Time, what string) { t.Logf("%9.3fs %s", at.Sub(evictiontest.Begin).Seconds(), what) }
		for _, wrong := range evictiontest.Churn(w) {
			t.Error(wrong)
		}
		return
	}
	var deleted, refused, averted atomic.Int64
	eachSeed(*seeds, func(seed uint64) bool {
		w := evictiontest.New(seed)
		wrong := evictiontest.Churn(w)
		deleted.Add(int64(w.Requests.Deleted))
		refused.Add(int64(w.Requests.Refusals))
		averted.Add(int64(w.Controller.Core().Stats().Averted))
		if len(wrong) > 0 {
			t.Errorf("seed %d: %s\n  again with: go test ./eviction -run %s -v -eviction.seed=%d", seed, wrong[0], t.Name(), seed)
		}
		return !t.Failed()
	})
	t.Logf("%d lives: %d pods evicted, %d requests failed, %d evictions averted by the live state",
		*seeds, deleted.Load(), refused.Load(), averted.Load())
	if deleted.Load() == 0 || refused.Load() == 0 || averted.Load() == 0 {
		t.Error("the lives are too quiet to show anything")
	}
}

// TestFlappingTaintEndsRight is W15 at every spacing, with late watches and failing deletes.
func TestFlappingTaintEndsRight(t *testing.T) { flaps(t, 100_000, evictiontest.Flap) }

// TestFlappingDeviceTaintEndsRight is the same for devices: taints in slices, and rules that are
// created, deleted, or lose their effect.
func TestFlappingDeviceTaintEndsRight(t *testing.T) { flaps(t, 50_000, evictiontest.FlapDevice) }

func flaps(t *testing.T, times int, flap func(*evictiontest.World) []string) {
	var deleted atomic.Int64
	eachSeed(times, func(seed uint64) bool {
		w := evictiontest.New(seed)
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

// TestEachSafeguardIsNeeded removes the safeguards one by one; at least one of the same lives must
// then end wrong.
func TestEachSafeguardIsNeeded(t *testing.T) {
	for _, safeguard := range eviction.Safeguards {
		t.Run(safeguard, func(t *testing.T) {
			var found atomic.Uint64
			eachSeed(100_000, func(seed uint64) bool {
				w := evictiontest.New(seed)
				w.Controller.NewCore = func() *eviction.Core { return eviction.New(eviction.Options{}).Break(safeguard) }
				if wrong := evictiontest.Churn(w); len(wrong) > 0 && found.CompareAndSwap(0, seed) {
					t.Logf("seed %d: %s", seed, wrong[0])
				}
				return found.Load() == 0
			})
			if found.Load() == 0 {
				t.Error("nothing went wrong without it")
			}
		})
	}
}

// eachSeed runs the seeds from 1 on on all processors until run returns false.
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
