// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"

	"github.com/berth-k8s/berth/internal/world/virtual"
)

var (
	lives     = flag.Int("lives", 150, "random lives of evictions")
	firstLife = flag.Int("life", 0, "seed of the first of them")
)

// TestLives verifies, under random faults, that each request gets a final status, requested pods
// leave, other pods stay, and no Eviction remains.
func TestLives(t *testing.T) {
	injected := map[virtual.Injection]int{}
	for seed := *firstLife; seed < *firstLife+*lives; seed++ {
		var lines strings.Builder
		w := New(uint64(seed))
		w.Trace = func(at time.Time, what string) {
			fmt.Fprintf(&lines, "%9.1fs %s\n", at.Sub(Begin).Seconds(), what)
		}
		if wrong := w.Life(60); len(wrong) > 0 {
			t.Fatalf("seed %d:\n%s\n%s", seed, strings.Join(wrong, "\n"), lines.String())
		}
		virtual.Add(injected, w.Line.Injected)
	}
	t.Log(virtual.Summary(injected))
}

// TestKilledAtEveryRequest verifies that the pod is evicted only once, and that the request reports
// the eviction, if the controller is killed before or after any of its requests and started again.
func TestKilledAtEveryRequest(t *testing.T) {
	for at := 1; ; at++ {
		killed := false
		for _, after := range []bool{false, true} {
			w := New(1)
			w.Refuses["web"] = "disrupted"
			w.Process.Start()
			p := w.AddPod("web", false)
			w.AddRequest("drain", "acme.io/drain", "web", p.UID)
			w.Line.KillAt, w.Line.KillAfter = at, after
			w.Run(3 * time.Second)
			delete(w.Refuses, "web")
			w.Run(30 * time.Second)
			if killed = !w.Process.Running(); killed {
				w.Process.Start()
			}
			w.Run(10 * time.Second)
			if w.Evicted[p.UID] != 1 || w.Pod("web") != nil {
				t.Errorf("killed at request %d (after it: %t): %d evictions", at, after, w.Evicted[p.UID])
			}
			if r := w.Request("drain"); len(r.Status.Conditions) != 2 || r.Status.Conditions[0].Reason != "PodDeleted" {
				t.Errorf("killed at request %d (after it: %t): %v", at, after, r.Status)
			}
		}
		if !killed {
			if at < 8 {
				t.Errorf("only %d requests", at-1)
			}
			return
		}
	}
}

// TestADeletionThatNoWatchShowsIsRepeated verifies that an Eviction does not remain if the response
// to its deletion reported success or a 404, and the Eviction was not deleted.
func TestADeletionThatNoWatchShowsIsRepeated(t *testing.T) {
	for _, fault := range []virtual.Fault{virtual.Gone, virtual.Ineffective} {
		w := New(1)
		w.Refuses["web"] = "disrupted"
		w.Process.Start()
		p := w.AddPod("web", false)
		w.AddRequest("drain", "acme.io/drain", "web", p.UID)
		w.Run(10 * time.Second)
		w.Line.Rules = []virtual.Rule{{Fault: fault, Chance: 1, Kind: "Delete", Count: 1}}
		w.DeleteRequest("drain")
		w.Run(3 * time.Minute)
		if left := All[*lifecyclev1alpha1.Eviction](w); len(left) > 0 {
			t.Errorf("%v: the Eviction remains: %v", fault, left[0].Status)
		}
		if w.Line.Injected[virtual.Injection{Kind: "Delete", Fault: fault}] != 1 {
			t.Errorf("%v: not injected", fault)
		}
	}
}

// TestManyBlockedPodsMakeNoStorm verifies that pods blocked by budgets cause about 50 evictions per
// second in total at most. It also verifies that pods are evicted soon after their budgets allow
// it: 200 pods within 6 s, and 1,000 pods within 30 s.
func TestManyBlockedPodsMakeNoStorm(t *testing.T) {
	for _, test := range []struct {
		pods, mostASecond int
		within            time.Duration
	}{{1, 1, 6 * time.Second}, {200, 60, 6 * time.Second}, {1000, 70, 30 * time.Second}} {
		w := New(1)
		w.Process.Start()
		for i := range test.pods {
			name := fmt.Sprintf("p%d", i)
			w.Refuses[name] = "disrupted"
			w.AddRequest(name, "acme.io/drain", name, w.AddPod(name, false).UID)
		}
		w.Run(3 * time.Minute)
		before := w.Line.Sent["Evict"]
		w.Run(time.Minute)
		if rate := float64(w.Line.Sent["Evict"]-before) / 60; rate > float64(test.mostASecond) {
			t.Errorf("%d pods: %.1f evictions a second", test.pods, rate)
		}
		clear(w.Refuses)
		w.Run(test.within)
		if left := test.pods - len(w.Evicted); left > 0 {
			t.Errorf("%d pods: %d have not been evicted %v after their budgets allowed it", test.pods, left, test.within)
		}
	}
}
