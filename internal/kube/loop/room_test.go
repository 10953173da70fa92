// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatchesWaitForRoom verifies that while the owner is blocked, the total size of the objects
// from watches is bounded, but responses can be added. When the owner continues, or the loop ends,
// all watches continue.
func TestWatchesWaitForRoom(t *testing.T) {
	const large, all = 1_500_000, 1000
	for _, goesOn := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			taken, held, hold := 0, true, make(chan struct{})
			l := New[string, string]("held")
			l.Wake = func(now time.Time) time.Time { return now.Add(time.Hour) }
			l.Step = func(_ time.Time, event string) []string {
				if held {
					<-hold
				}
				if event != "" { // not a Tick
					taken++
				}
				return nil
			}

			shown := 0
			watch := func(context.Context) {
				for range all / 2 {
					l.Show("object", large)
					shown++
				}
			}
			var other int
			second := func(context.Context) {
				for range all / 2 {
					l.Show("object", large)
					other++
				}
			}
			ctx, end := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				l.Run(ctx, watch, second)
			}()
			synctest.Wait()

			if n := shown + other; n*large < mostBytes || n*large > mostBytes+2*large {
				t.Errorf("%d objects of %d bytes wait", n, large)
			}
			l.See("answer")
			if !goesOn {
				end()
			}
			held = false
			close(hold)
			synctest.Wait()
			if goesOn && taken != all+1 {
				t.Errorf("%d of %d events were taken in", taken, all+1)
			}
			end()
			<-done
		})
	}
}
