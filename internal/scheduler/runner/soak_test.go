// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

var soak = flag.Duration("soak", time.Hour, "virtual time of TestSoak; 24h takes some minutes")

// TestSoak creates and deletes pods and nodes for hours. It verifies that memory and the number of
// goroutines do not grow in the second half, and that no state of deleted objects remains.
func TestSoak(t *testing.T) {
	inWorld(t, func(w *world) {
		rng := rand.New(rand.NewPCG(3, 3))
		for i := range 20 {
			w.api.Put(aNode(fmt.Sprintf("n%d", i), "4"))
		}
		w.start(Options{})
		type life struct {
			pod  *v1.Pod
			ends time.Time
		}
		var lives []life
		var level uint64
		goroutines := 0
		began, made := time.Now(), 0
		for minute := 0; time.Since(began) < *soak; minute++ {
			for range 8 {
				job := made / 20 % 100 // the number of classes is limited, because their state is kept for longer than their pods
				p := withPriority(aPod(fmt.Sprintf("p%d", made), fmt.Sprintf("%dm", 500+100*(job%16))), int32(made%3))
				p.UID = types.UID(p.Name)
				p.Labels = map[string]string{"job": fmt.Sprint(job)}
				made++
				w.api.Put(p)
				lives = append(lives, life{p, time.Now().Add(time.Duration(1+rng.IntN(12)) * time.Minute)})
			}
			kept := lives[:0]
			for _, l := range lives {
				if time.Now().After(l.ends) {
					w.api.Delete(l.pod)
				} else {
					kept = append(kept, l)
				}
			}
			clear(lives[len(kept):])
			lives = kept
			if minute%7 == 0 {
				n := aNode(fmt.Sprintf("n%d", 20+minute%3), "4")
				w.api.Delete(n)
				w.api.Put(n)
			}
			w.api.Cut([]string{"pods", "nodes"}[minute%2], minute%10 == 0)
			fakeapi.Change(w.api, aNode("n1", "4"), func(n *v1.Node) { n.Labels["minute"] = fmt.Sprint(minute) })
			w.pass(time.Minute)
			if level == 0 && time.Since(began) > *soak/2 {
				level, goroutines = memory(), runtime.NumGoroutine()
			}
		}
		if now := memory(); now > level+level/5+4<<20 {
			t.Errorf("memory went from %d to %d KiB", level>>10, now>>10)
		}
		if n := runtime.NumGoroutine(); n > goroutines+20 {
			t.Errorf("%d goroutines, were %d", n, goroutines)
		}
		t.Logf("%d pods in %v; memory %d KiB after half of it, %d KiB at the end", made, time.Since(began), level>>10, memory()>>10)
		for _, l := range lives {
			w.api.Delete(l.pod)
		}
		for _, p := range w.api.Pods() {
			w.api.Delete(p)
		}
		w.pass(10 * time.Minute)
		w.do(func() {
			s := w.s
			if n := len(s.core.Books().Assumed) + len(s.core.Books().Preemptor) + len(s.core.Books().Leaving) + len(s.core.Books().Unserved) + s.core.Books().Awaiting + s.core.View().Cluster.Pods() + s.core.View().Cluster.Nominations(); n != 0 {
				t.Errorf("kept of what is gone: %d on their way, %v, %v, %v, %d on nodes, %d nominated", len(s.core.Books().Assumed), s.core.Books().Preemptor, s.core.Books().Leaving, s.core.Books().Unserved, s.core.View().Cluster.Pods(), s.core.View().Cluster.Nominations())
			}
			items := 0
			for range s.core.View().Queue.Each {
				items++
			}
			if items != 0 {
				t.Errorf("%d in the queue", items)
			}
		})
		synctest.Wait()
	})
}

// memory returns the size of the live heap.
func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
