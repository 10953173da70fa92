package live

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestNewerStatusIsWrittenAtOnceWithWhatWasNotTaken: it does not wait until the older one is due
// again, and what only the older one says is not lost.
func TestNewerStatusIsWrittenAtOnceWithWhatWasNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		by, ended := newWorkers(), make(chan struct{})
		go func() { defer close(ended); by.run(ctx, context.Background(), 2) }()
		var tried []string
		down := true
		s := newStatuses(by, func(_ context.Context, what string) error {
			time.Sleep(10 * time.Millisecond)
			tried = append(tried, what)
			if down {
				return errors.New("connection refused")
			}
			return nil
		}, func(older, newer string) string { return older + "+" + newer })
		pod := aPod("p", "1")
		s.add(pod, "a")
		time.Sleep(time.Hour) // it is now tried every half minute
		down = false
		synctest.Wait()
		before := len(tried)
		s.add(pod, "b")
		time.Sleep(20 * time.Millisecond)
		if before < 60 || before > 300 || !slices.Equal(tried[before:], []string{"a+b"}) {
			t.Errorf("%d tries in an hour; then %q", before, tried[before:])
		}
		s.add(pod, "c")
		time.Sleep(time.Hour)
		if !slices.Equal(tried[before:], []string{"a+b", "c"}) || len(s.under) != 0 {
			t.Errorf("then %q, %d left", tried[before:], len(s.under))
		}
		down = true
		s.add(pod, "d")
		time.Sleep(5 * time.Millisecond)
		s.add(pod, "e") // while d is under way
		time.Sleep(10 * time.Millisecond)
		down = false
		time.Sleep(time.Minute)
		if got := tried[before+2:]; !slices.Equal(got, []string{"d", "d+e"}) {
			t.Errorf("then %q", got)
		}
		cancel()
		<-ended
	})
}

// TestTheCoreHearsOfTheWallClock: it is set while the scheduler runs, and conditions have its time.
func TestTheCoreHearsOfTheWallClock(t *testing.T) {
	inWorld(t, func(w *world) {
		var set atomic.Int64
		w.start(Options{})
		if err := w.s.ask(w.Context(), func() {
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
