// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counting returns a loop with a core that records its events, sends a request for each event, and
// is woken each minute.
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
		stopped := time.Now()
		<-ended
		if fed.Load() == 0 {
			t.Error("nothing was fed")
		}
		if took := time.Since(stopped); took > time.Second {
			t.Errorf("Run returned %v after the end of its context", took)
		}
	})
}

// TestWhoLeavesAnEventNeverWaits verifies that See blocks neither the owner nor callers before Run,
// whatever the number of events, and that all events reach the core in order, before a Tick.
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

// TestWhatComesTooLateIsKept verifies that requests end with Run, and that Left returns their
// responses.
func TestWhatComesTooLateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		l.See("a")
		go func() { synctest.Wait(); cancel() }()
		l.Run(ctx)
		l.Look(func() {})
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
		l.EverySecond = func() { told++ }
		l.Wake = func(now time.Time) time.Time {
			time.Sleep(100 * time.Millisecond) // duration of a step of the core
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

// TestTimeTakesEffectAfterTheInbox verifies that a core that is always due gets all events of the
// inbox before the first Tick, and events added during a Tick before the next one.
func TestTimeTakesEffectAfterTheInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var took []string
		l := counting(&took, time.Second)
		l.Wake = func(now time.Time) time.Time { return now }
		step := l.Step
		l.Step = func(now time.Time, event string) []string {
			switch {
			case len(took) > 10:
				cancel()
			case event == "tick":
				l.See(fmt.Sprint("after ", len(took)))
			}
			step(now, event)
			return nil
		}
		l.See("a")
		l.See("b")
		l.Run(ctx)
		if want := []string{"a", "b", "tick", "after 2", "tick", "after 4"}; !slices.Equal(took[:6], want) {
			t.Errorf("the core was given %v, want %v", took, want)
		}
	})
}

// TestEveryActionIsCarriedOut verifies that actions are carried out in order, and that Wake is
// called with the current time after all events of the inbox.
func TestEveryActionIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done []string
		var woken []time.Duration
		took := 0
		l := New[string, string]("several")
		l.Step = func(_ time.Time, event string) []string {
			took++
			return []string{event + "1", event + "2", event + "3"}
		}
		l.Do = func(_ context.Context, action string) func(context.Context) string {
			done = append(done, action)
			if took > 2 {
				return nil
			}
			return func(context.Context) string { return action }
		}
		l.Wake = func(now time.Time) time.Time {
			if len(done) < 6 {
				t.Errorf("asked when to be woken after %v", done)
			}
			woken = append(woken, now.Sub(l.begun))
			return now.Add(time.Hour)
		}
		l.See("a")
		l.See("b")
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		l.Run(ctx)
		if len(done) != 6+6*3 || !slices.Equal(done[:6], []string{"a1", "a2", "a3", "b1", "b2", "b3"}) {
			t.Errorf("carried out %v", done)
		}
		if woken[0] < time.Second {
			t.Errorf("asked as of %v after the beginning", woken[0])
		}
	})
}

// TestTellDoesNotWakeTheCore verifies that EverySecond is called each second while the core is
// idle, without Ticks for the core.
func TestTellDoesNotWakeTheCore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Second)
		told, wake := 0, l.Now().Add(time.Hour)
		l.EverySecond = func() { told++ }
		l.Wake = func(time.Time) time.Time { return wake }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		l.Run(ctx)
		if told < 59 || len(took) > 0 {
			t.Errorf("told %d times in a minute, and the core was given %v", told, took)
		}
	})
}

// TestRequestsRunBesideTheOwner verifies that the core gets events while a request is in flight,
// and that the context of Do ends with Run.
func TestRequestsRunBesideTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Hour)
		do, given := l.Do, context.Context(nil)
		l.Do = func(ctx context.Context, action string) func(context.Context) string {
			given = ctx
			return do(ctx, action)
		}
		l.See("a")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		synctest.Wait()
		l.See("b")
		time.Sleep(time.Second)
		synctest.Wait()
		if !slices.Equal(took, []string{"a", "b"}) {
			t.Errorf("while a request is under way, the core was given %v", took)
		}
		cancel()
		<-ended
		if given.Err() == nil {
			t.Error("the context of Do outlives Run")
		}
	})
}

// TestReturnsAfterItsFeeds verifies that Run returns only after its feeds have ended.
func TestReturnsAfterItsFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		fed := false
		l.Run(ctx, func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(time.Second)
			fed = true
		})
		if !fed {
			t.Error("Run returned before its feed")
		}
	})
}

// TestPanicWaitsForNobody verifies that a panic of the core is not delayed by feeds that still run.
func TestPanicWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []string
		l := counting(&took, time.Second)
		l.Step = func(time.Time, string) []string { panic("a bug") }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is gone")
				}
			}()
			l.See("a")
			l.Run(ctx, func(ctx context.Context) {
				select {
				case <-ctx.Done():
				case <-time.After(time.Hour):
				}
			})
		}()
		if took := time.Since(began); took > 0 {
			t.Errorf("waited %v", took)
		}
	})
}

// TestNowCanBeWrittenDown verifies that the result of Now has no monotonic reading and is in UTC,
// so that it does not change when it is read back from a journal.
func TestNowCanBeWrittenDown(t *testing.T) {
	l := New[string, string]("clock")
	if now := l.Now(); now != now.Round(0) || now.Location() != time.UTC {
		t.Errorf("%v has a monotonic reading or a zone", now)
	}
}

func TestNoEventIsLostAmongMany(t *testing.T) {
	const writers, each = 8, 20_000
	l := New[int, int]("many")
	var writing sync.WaitGroup
	for range writers {
		writing.Go(func() {
			for i := range each {
				l.See(i)
			}
		})
	}
	writing.Wait()
	if n := len(l.Left()); n != writers*each {
		t.Errorf("%d events of %d", n, writers*each)
	}
}

// TestInboxKeepsRoomAndNothingElse verifies that a message causes no allocation, and that an event
// is not retained after it was processed.
func TestInboxKeepsRoomAndNothingElse(t *testing.T) {
	l := New[*int, int]("room")
	l.Step = func(time.Time, *int) []int { return nil }
	l.Wake = func(now time.Time) time.Time { return now }
	event := new(int)
	if n := testing.AllocsPerRun(100, func() { l.See(event); l.CatchUp() }); n > 0 {
		t.Errorf("%v allocations a message", n)
	}
	for _, room := range [][]message[*int]{l.spare, l.inbox.messages} {
		for _, m := range room[:cap(room)] {
			if m.event != nil {
				t.Error("an event is held that was taken in")
			}
		}
	}
}
