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
	l.Tell = func() {}
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
		l.See(ctx, "a")
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
					l.See(ctx, "more")
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
