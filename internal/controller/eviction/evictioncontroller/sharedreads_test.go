// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestReadingsAreSharedAndNeverOlderThanTheirAsker verifies that callers for one node share reads,
// and never get a result from before their call. A caller begins every 3 ms, and a read takes 10
// ms.
func TestReadingsAreSharedAndNeverOlderThanTheirAsker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		readings := 0
		var reads sharedReads[string, *eviction.Node]
		reads.get = func(context.Context, string) (*eviction.Node, error) {
			readings++
			state := time.Since(began).String()
			time.Sleep(10 * time.Millisecond)
			return &eviction.Node{Name: state}, nil
		}
		var asked sync.WaitGroup
		for i := range 100 {
			asked.Go(func() {
				time.Sleep(time.Duration(i) * 3 * time.Millisecond)
				asked := time.Since(began)
				node, err := reads.readShared(t.Context(), "n")
				if err != nil {
					t.Error(err)
					return
				}
				if read, _ := time.ParseDuration(node.Name); read < asked {
					t.Errorf("asked at %v, was given the state of %v", asked, read)
				}
			})
		}
		asked.Wait()
		if readings > 40 {
			t.Errorf("%d readings for 100 askers in 300 ms, want one each 10 ms", readings)
		}
		if len(reads.reads) != 0 {
			t.Error("a reading is left")
		}
	})
}

// TestAskerThatWaitsGivesUpAlone verifies that if one of several callers sharing a read runs out of
// time, the other callers still get the result.
func TestAskerThatWaitsGivesUpAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads sharedReads[string, *eviction.Node]
		reads.get = func(context.Context, string) (*eviction.Node, error) {
			time.Sleep(time.Second)
			return &eviction.Node{}, nil
		}
		var asked sync.WaitGroup
		for range 2 { // the first caller reads now, the second one reads next
			asked.Go(func() {
				if _, err := reads.readShared(t.Context(), "n"); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := reads.readShared(short, "n"); err == nil {
			t.Error("an asker out of time was answered")
		}
		asked.Wait()
	})
}

// TestAReadIsNotBoundedByWhoBeganIt verifies that the callers sharing a read get its result even if
// the caller that began it has run out of time, that a read without a response ends after
// answerWithin, and that a read without waiting callers ends immediately.
func TestAReadIsNotBoundedByWhoBeganIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads sharedReads[string, *eviction.Node]
		takes, began := time.Second, time.Now()
		reads.get = func(ctx context.Context, _ string) (*eviction.Node, error) {
			select {
			case <-time.After(takes):
				return &eviction.Node{}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		var asked sync.WaitGroup
		ask := func(patience, ends time.Duration, fails bool) {
			asked.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := reads.readShared(ctx, "n")
				if after := time.Since(began); (err != nil) != fails || after != ends {
					t.Errorf("who waits for %v: %v after %v, want it after %v", patience, err, after, ends)
				}
			})
			synctest.Wait()
		}

		ask(time.Minute, time.Second, false)                    // reads now
		ask(1500*time.Millisecond, 1500*time.Millisecond, true) // begins the next one
		ask(time.Minute, 2*time.Second, false)                  // joins the next one
		asked.Wait()

		takes, began = time.Hour, time.Now()
		ask(time.Minute, answerWithin, true)
		asked.Wait()

		began = time.Now()
		ask(time.Second, time.Second, true)
		asked.Wait()
		synctest.Wait()
		if len(reads.reads) != 0 {
			t.Error("a read goes on that nobody waits for")
		}
	})
}
