// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"testing"
	"time"
)

// TestAnEvictionFollowsRecoveryWithinSixSeconds verifies that pods are evicted within six seconds
// after the API server stops refusing deletes, whether there is one pod or a thousand: the back-off
// must not grow with the duration of the outage.
func TestAnEvictionFollowsRecoveryWithinSixSeconds(t *testing.T) {
	const promised = 6 * time.Second
	for _, pods := range []int{1, 1_000} {
		for _, trouble := range []time.Duration{30 * time.Second, 40 * time.Second, 137 * time.Second, 5 * time.Minute} {
			t.Run(fmt.Sprintf("%d pods after %v", pods, trouble), func(t *testing.T) {
				t.Parallel()
				w := New(1)
				w.AddNode("node")
				for i := range pods {
					w.AddPod(fmt.Sprintf("pod-%d", i), "node", nil)
					w.RefuseDeletes(fmt.Sprintf("pod-%d", i), 1<<30)
				}
				w.Requests.Until = w.Now.Add(trouble)
				w.Controller.Start()
				w.Taint("node", "a", "v", true)

				w.Run(trouble)
				retries := w.Core().Stats().Retries
				if w.Requests.Deleted > 0 || retries < 10*pods {
					t.Fatalf("%d deleted after %d retries while nothing may be deleted", w.Requests.Deleted, retries)
				}
				// After the first seven failures, at most one delete is sent every four seconds.
				if most := pods * (8 + int(trouble/(4*time.Second))); retries > most {
					t.Errorf("%d retries within %v, more than %d", retries, trouble, most)
				}

				w.Run(promised)
				if w.Requests.Deleted != pods {
					t.Errorf("%d of %d pods evicted within %v of the recovery", w.Requests.Deleted, pods, promised)
				}
			})
		}
	}
}

// TestDeletesThatFailInARow verifies that after 10 or 30 failed deletes, the next delete evicts the
// pod, and that the pause between two deletes never exceeds five seconds. After the first attempts,
// a pod is deleted at most once every four seconds, and at most a third of all pods in any second,
// as guaranteed to the API server in docs/concepts/eviction.md.
func TestDeletesThatFailInARow(t *testing.T) {
	const (
		longest  = 5*time.Second + 200*time.Millisecond // limit of a pause, plus the duration of an attempt
		shortest = 4 * time.Second
		ramp     = 7 // number of first attempts, with shorter pauses
	)
	for _, pods := range []int{1, 1_000, 5_000} {
		for _, failed := range []int{10, 30} {
			t.Run(fmt.Sprintf("%d of each of %d pods", failed, pods), func(t *testing.T) {
				t.Parallel()
				w := New(1)
				w.AddNode("node")
				var all []*Pod
				for i := range pods {
					p := w.AddPod(fmt.Sprintf("pod-%d", i), "node", nil)
					w.RefuseDeletes(p.Name.Name, failed)
					all = append(all, p)
				}
				w.Requests.Until = w.Now.Add(time.Hour)
				w.Controller.Start()
				w.Taint("node", "a", "v", true)
				w.Run(time.Duration(failed) * longest)

				seconds := map[int64]int{}
				for _, p := range all {
					if len(p.Deletes) != failed+1 || !p.Terminating {
						t.Fatalf("%s: %d deletes, %d of which were to fail; leaving: %t", p.Name, len(p.Deletes), failed, p.Terminating)
					}
					for i, at := range p.Deletes {
						seconds[at.Unix()]++
						if i == 0 {
							continue
						}
						if pause := at.Sub(p.Deletes[i-1]); pause > longest || i > ramp && pause < shortest {
							t.Errorf("%s: %v between delete %d and the next", p.Name, pause, i)
						}
					}
				}
				for second, deletes := range seconds {
					if since := time.Unix(second, 0).Sub(Begin); since > 10*time.Second && deletes > pods/3+1 {
						t.Errorf("%d deletes within a second, after %v", deletes, since)
					}
				}
			})
		}
	}
}
