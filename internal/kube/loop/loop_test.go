package loop

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counting asks for a request for each event, and wants to be woken each minute.
func counting(took *[]string, hang time.Duration) *Loop[string, string] {
	l := New[string, string]("counting")
	l.Tick = "tick"
	l.Wake = func(now time.Time) time.Time { return now.Add(time.Minute) }
	l.Step = func(_ time.Time, event string) []string {
		*took = append(*took, event)
		if event == "tick" || event == "answered" {
			return nil
		}
		return []string{event}
	}
	l.Do = func(context.Context, string) func(context.Context) string {
		return func(ctx context.Context) string {
			select {
			case <-time.After(hang):
			case <-ctx.Done():
			}
			return "answered"
		}
	}
	return l
}

func TestEventsAnswersAndTimeReachTheCore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		l.See("a")
		synctest.Wait()
		time.Sleep(90 * time.Second)
		cancel()
		<-ended
		if !slices.Contains(took, "a") || !slices.Contains(took, "answered") || took[len(took)-1] != "tick" {
			t.Errorf("the core was given %v", took)
		}
	})
}

func TestEndsWhileRequestsHangAndFeedsBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Hour)
		var fed atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.Run(ctx, func(ctx context.Context) {
				for ctx.Err() == nil {
					l.See("more")
					fed.Add(1)
					time.Sleep(time.Millisecond)
				}
			})
		}()
		time.Sleep(time.Second)
		cancel()
		<-ended
		if fed.Load() == 0 {
			t.Error("nothing was fed")
		}
	})
}

// TestWhoLeavesAnEventNeverWaits: a watch before Run, however many events it has, and the owner
// itself. All are taken in, in their order, before time takes effect.
func TestWhoLeavesAnEventNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 10_000
		var took []string
		l := counting(&took, time.Second)
		answered := false
		l.Do = func(_ context.Context, action string) func(context.Context) string {
			if action == "first" {
				for range many {
					l.See("tick")
				}
			}
			return nil
		}
		l.See("first")
		for range many {
			l.See("answered")
		}
		l.Look(func() { answered = len(took) == 1+many })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		synctest.Wait()
		cancel()
		<-ended
		if !answered || len(took) != 1+2*many || took[0] != "first" || took[many] != "answered" || took[1+many] != "tick" {
			t.Errorf("%d events, looked after the answers: %v", len(took), answered)
		}
	})
}

// TestWhatComesTooLateIsKept: requests end with Run, and what they answer then is not lost.
func TestWhatComesTooLateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		l.See("a")
		go func() { synctest.Wait(); cancel() }()
		l.Run(ctx)
		if left := l.Left(); len(left) != 1 || left[0] != "answered" {
			t.Errorf("left: %v", left)
		}
	})
}

func TestMetricsAreToldEachSecondAlsoOfACoreThatNeverRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Second)
		told := 0
		l.Tell = func() { told++ }
		l.Wake = func(now time.Time) time.Time {
			time.Sleep(100 * time.Millisecond) // what the core takes
			return now
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		l.Run(ctx)
		if told < 9 {
			t.Errorf("told %d times in ten seconds", told)
		}
	})
}
