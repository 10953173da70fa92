package live

import (
	"context"
	"errors"
	"slices"
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
		go func() { defer close(ended); by.run(ctx, 2) }()
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
