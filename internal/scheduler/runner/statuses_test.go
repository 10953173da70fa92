// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/kube/loop"
)

// TestNewerStatusIsWrittenAtOnceWithWhatWasNotTaken verifies that a newer status does not wait for
// the retry of an older one, but is merged with it and written immediately.
func TestNewerStatusIsWrittenAtOnceWithWhatWasNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		by, ended := newWorkers(), make(chan struct{})
		go func() { defer close(ended); by.runWorkers(ctx, context.Background(), 2) }()
		var mu sync.Mutex
		var written []string
		var down, busy atomic.Bool
		down.Store(true)
		s := newStatuses(by, func(_ context.Context, what string) error {
			busy.Store(true)
			defer busy.Store(false)
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			written = append(written, what)
			if down.Load() {
				return errors.New("connection refused")
			}
			return nil
		}, func(older, newer string) string { return older + "+" + newer })
		tried := func(after int) []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(written[after:]) }
		pod := aPod("p", "1")
		s.addWrite(pod, "a", false)
		time.Sleep(time.Hour) // it is now retried about every half minute
		for busy.Load() {     // a try in progress must not succeed
			time.Sleep(time.Millisecond)
		}
		down.Store(false)
		synctest.Wait()
		before := len(tried(0))
		s.addWrite(pod, "b", false)
		time.Sleep(20 * time.Millisecond)
		if got := tried(before); before < 60 || before > 300 || !slices.Equal(got, []string{"a+b"}) {
			t.Errorf("%d tries in an hour; then %q", before, got)
		}
		s.addWrite(pod, "c", false)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := tried(before); !slices.Equal(got, []string{"a+b", "c"}) || len(s.pending) != 0 {
			t.Errorf("then %q, %d left", got, len(s.pending))
		}
		down.Store(true)
		s.addWrite(pod, "d", false)
		time.Sleep(5 * time.Millisecond)
		s.addWrite(pod, "e", false) // queued while d is in flight
		time.Sleep(10 * time.Millisecond)
		down.Store(false)
		time.Sleep(time.Minute)
		if got := tried(before + 2); !slices.Equal(got, []string{"d", "d+e"}) {
			t.Errorf("then %q", got)
		}
		cancel()
		<-ended
	})
}

// TestTheCoreHearsOfTheWallClock verifies that conditions have wall-clock times, even if the wall
// clock is set while the scheduler runs.
func TestTheCoreHearsOfTheWallClock(t *testing.T) {
	inWorld(t, func(w *world) {
		var set atomic.Int64
		w.start(Options{})
		if err := w.s.callOwner(w.Context(), func() {
			w.s.wallClock = func() time.Time { return time.Now().Add(time.Duration(set.Load())) }
		}); err != nil {
			t.Fatal(err)
		}
		written := func(name string) time.Duration {
			w.api.Put(aPod(name, "1"))
			var at time.Time
			w.until("the condition of "+name, func() bool {
				for _, p := range w.api.Pods() {
					if p.Name == name && len(p.Status.Conditions) > 0 {
						at = p.Status.Conditions[0].LastTransitionTime.Time
					}
				}
				return !at.IsZero()
			})
			return time.Since(at)
		}
		if ago := written("first"); ago < 0 || ago > 10*time.Second {
			t.Errorf("the condition is of %v ago", ago)
		}
		set.Store(int64(-24 * time.Hour))
		if ago := written("second"); ago < 23*time.Hour || ago > 25*time.Hour {
			t.Errorf("the clock was set back by a day, and the condition is of %v ago", ago)
		}
	})
}

// TestWhatMayBeLateIsWrittenAtABoundedRate verifies that after a burst, deferrable writes are sent
// at a bounded rate, and that the latest write of each object is sent in the end. A write that is
// not deferrable is sent immediately, merged with the object's deferred write, and does not count
// against the rate.
func TestWhatMayBeLateIsWrittenAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		by, ended := newWorkers(), make(chan struct{})
		go func() { defer close(ended); by.runWorkers(ctx, context.Background(), 4) }()
		var mu sync.Mutex
		var written []string
		s := newStatuses(by, func(_ context.Context, what string) error {
			mu.Lock()
			written = append(written, what)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			return nil
		}, func(older, newer string) string { return older[:strings.Index(older, " ")] + " " + newer })
		count := func() int { mu.Lock(); defer mu.Unlock(); return len(written) }
		const pods, rounds = 500, 100
		for range rounds { // 50,000 writes in 20 s
			for i := range pods {
				name := fmt.Sprint("p", i)
				s.addWrite(aPod(name, "1"), name+" reworded", true)
			}
			time.Sleep(200 * time.Millisecond)
		}
		if n, most := count(), unhurriedBurst+20*unhurriedRate+1; n > most || n < most-10 {
			t.Errorf("%d written in 20 s, not %d", n, most)
		}
		before := count()
		s.addWrite(aPod("p250", "1"), "p250 nominated", false)
		s.addWrite(aPod("new", "1"), "new unschedulable", false)
		time.Sleep(5 * time.Millisecond)
		mu.Lock()
		if now := written[before:]; !slices.Contains(now, "p250 p250 nominated") || !slices.Contains(now, "new unschedulable") {
			t.Errorf("then %q", now)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		for i := range pods {
			if name := fmt.Sprint("p", i); !slices.ContainsFunc(written, func(w string) bool { return strings.HasPrefix(w, name+" ") }) {
				t.Errorf("nothing was ever written of %s", name)
			}
		}
		mu.Unlock()
		synctest.Wait()
		if len(s.pending) != 0 {
			t.Errorf("%d left", len(s.pending))
		}
		before = count() // dropped writes must not count against the rate
		for i := range 2 * pods {
			name := fmt.Sprint("gone", i)
			s.addWrite(aPod(name, "1"), name+" reworded", true)
			if i%2 == 0 {
				s.forgetObject(aPod(name, "1").UID)
			}
		}
		time.Sleep(23 * time.Second) // 50 are written in the burst, and 450 at the rate
		synctest.Wait()
		if n := count() - before; n < pods || n > pods+unhurriedBurst/2 || len(s.pending)+len(s.late) != 0 {
			t.Errorf("%d of %d written, %d wait", n, pods, len(s.late))
		}
		time.Sleep(time.Minute)
		before = count() // below the rate, no write is deferred
		for i := range 60 {
			s.addWrite(aPod("calm", "1"), fmt.Sprint("calm ", i), true)
			time.Sleep(time.Second)
			if n := count(); n != before+i+1 {
				t.Fatalf("%d of %d written at once", n-before, i+1)
			}
		}
		cancel()
		<-ended
	})
}

// TestWhatWaitsOfAPodEndsWithIt verifies that a deferred status write is dropped when the pod is
// bound or deleted.
func TestWhatWaitsOfAPodEndsWithIt(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(Options{})
		w.s.podStatuses.mu.Lock()
		w.s.podStatuses.unhurried = rate.NewLimiter(1e-9, 0) // deferred writes are never sent
		w.s.podStatuses.mu.Unlock()
		w.api.Put(aNode("n1", "1"))
		names := []string{"gone", "bound", "elsewhere"}
		for _, name := range names {
			w.api.Put(aPod(name, "2"))
			w.until("the condition of "+name, func() bool { return strings.Contains(w.condition(name), "0/1 nodes") })
		}
		large := aNode("n2", "8")
		large.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}
		w.api.Put(large)
		waiting := func() (n int) {
			w.s.podStatuses.mu.Lock()
			defer w.s.podStatuses.mu.Unlock()
			for _, o := range w.s.podStatuses.pending {
				if o.waits {
					n++
				}
			}
			return n
		}
		w.until("three messages wait", func() bool { return waiting() == 3 })
		if got := w.condition("gone"); !strings.Contains(got, "0/1 nodes") {
			t.Errorf("written all the same: %s", got)
		}
		w.api.Delete(aPod("gone", "2"))
		w.until("one went with its pod", func() bool { return waiting() == 2 })
		w.api.Put(on(aPod("elsewhere", "2"), "n1"))
		w.until("one was bound by another client", func() bool { return waiting() == 1 })
		large = large.DeepCopy()
		large.Spec.Taints = nil
		w.api.Put(large)
		w.untilBound("bound")
		w.until("nothing waits", func() bool { return waiting() == 0 })
	})
}

// TestPodsThatAreGoneHoldUpNothing verifies that pending status writes of deleted pods are dropped,
// so that the removal of a victim does not wait behind them, even if a webhook makes each status
// write take half a minute.
func TestPodsThatAreGoneHoldUpNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n", "1"), on(aPod("victim", "1"), "n"))
		var written atomic.Int64
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/short-") {
				written.Add(1)
				return fakeapi.Fault{Late: 30 * time.Second}
			}
			return fakeapi.Fault{}
		})
		w.start(Options{})
		const pods = 1000
		for i := range pods {
			w.api.Put(aPod(fmt.Sprint("short-", i), "2"))
		}
		w.pass(time.Second)
		for i := range pods {
			w.api.Delete(aPod(fmt.Sprint("short-", i), "2"))
		}
		w.pass(time.Second)
		w.api.Put(withPriority(aPod("high", "1"), 10))
		w.pass(time.Minute)
		if node := w.nodeOf("victim"); node != "gone" {
			t.Error("the victim is still there")
		}
		w.pass(time.Hour)
		if n := written.Load(); n != helperCount {
			t.Errorf("%d statuses of pods that are gone were written, want %d", n, helperCount)
		}
		if n := len(w.s.podStatuses.pending); n != 0 {
			t.Errorf("%d statuses are left", n)
		}
	})
}

// TestNominationThatIsDroppedIsAnswered verifies that the core gets a response for a nomination
// that was still queued when its pod was deleted.
func TestNominationThatIsDroppedIsAnswered(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if r.Method == http.MethodPatch {
				return fakeapi.Fault{Late: time.Minute}
			}
			return fakeapi.Fault{}
		})
		w.start(Options{Profiles: []cycle.Profile{with(t, &outsider{name: "O", slow: time.Hour})}})
		w.api.Put(aNode("n", "1"))
		for i := range helperCount {
			w.api.Put(aPod(fmt.Sprint("large-", i), "2"))
		}
		w.pass(time.Second)
		w.api.Put(aPod("p", "1"))
		w.pass(time.Second)
		calm := func() (calm bool) {
			w.do(func() { calm = w.s.core.Calm() })
			return calm
		}
		if calm() {
			t.Error("no nomination waits")
		}
		w.api.Delete(aPod("p", "1"))
		w.pass(time.Second)
		if !calm() {
			t.Error("an answer is waited for that does not come")
		}
	})
}

// TestWithdrawnBindingsKeepNoPods verifies that queued bindings that were withdrawn retain no pods
// in memory, because it may take long until a worker reaches them.
func TestWithdrawnBindingsKeepNoPods(t *testing.T) {
	s := &Scheduler{tasks: map[cycle.Ticket]*task{}, loop: loop.New[cycle.Event, cycle.Action]("test"), binders: newWorkers()}
	pod := aPod("p", "1")
	kept := weak.Make(pod)
	s.carryOut(t.Context(), cycle.Bind{Ticket: 1, Attempt: &cycle.Attempt{Pod: pod}})
	pod = nil
	s.cancelTask(cycle.Cancel{Ticket: 1})
	runtime.GC()
	if kept.Value() != nil {
		t.Error("a pod whose binding was withdrawn is kept")
	}
	runtime.KeepAlive(s)
}
