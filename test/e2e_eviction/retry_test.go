// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	failing     = flag.Int("failing", 10, "how many DELETEs of each pod fail in a row, in TestDeletesThatFailInARow")
	failingPods = flag.Int("failing-pods", 100, "of how many pods at once")
)

// TestDeletesThatFailInARow verifies that after many failed DELETE requests for many pods, each pod
// is evicted within six seconds, by the next DELETE. At the longest back-off, at most a third of
// the pods may be retried per second. Thirty failures per pod take two minutes:
//
//	go test ./e2e_eviction -run TestDeletesThatFailInARow -failing 30 -failing-pods 1000 -v
func TestDeletesThatFailInARow(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	network, kubeconfig := newProxy(t, c.config)
	s := newStage(t, c)

	var mu sync.Mutex
	deletes := map[string][]time.Time{} // times of DELETE requests by path
	network.note = func(r *http.Request) {
		if r.Method == http.MethodDelete {
			mu.Lock()
			defer mu.Unlock()
			deletes[r.URL.Path] = append(deletes[r.URL.Path], time.Now())
		}
	}
	startController(t, kubeconfig, alone, "--controllers=taint-eviction-controller")
	s.evicts(30 * time.Second)
	c.must(c.createNode("n", "z"))
	var pods []*v1.Pod
	for i := range *failingPods {
		name := fmt.Sprintf("p%d", i)
		network.add(fault{method: http.MethodDelete, path: podPath(name), times: *failing, status: http.StatusInternalServerError})
		pods = append(pods, s.again(name, "n"))
	}

	const (
		longest = 5 * time.Second // pause
		ramp    = 8               // number of DELETEs with a shorter back-off
	)
	began := s.taint("n", "a")
	pulse, stop := context.WithCancel(t.Context())
	defer stop()
	go s.feelThePulse(pulse)
	end := began.Add(time.Duration(*failing) * longest)
	for _, pod := range pods {
		if !s.leavesBy(pod.UID, end.Add(s.punctual())) {
			t.Fatalf("%s has not left after %d DELETEs that failed", pod.Name, *failing)
		}
	}
	stop()

	mu.Lock()
	defer mu.Unlock()
	seconds, worst := map[int]int{}, time.Duration(0)
	for _, pod := range pods {
		asked := deletes[podPath(pod.Name)]
		if len(asked) != *failing+1 {
			t.Errorf("%s: %d DELETEs, %d of which failed", pod.Name, len(asked), *failing)
			continue
		}
		for _, at := range asked[min(ramp, len(asked)):] {
			seconds[int(at.Sub(began)/time.Second)]++
		}
		left, _ := s.when(pod.UID)
		worst = max(worst, left.Sub(asked[*failing-1]))
	}
	if worst > longest+time.Second+s.punctual() {
		t.Errorf("a pod left %v after the last DELETE that failed", worst)
	}
	most := 0
	for _, n := range seconds {
		most = max(most, n)
	}
	// On a slow machine, delayed requests may arrive together.
	slow := time.Duration(s.slow.Load())
	if allowed := int(float64(len(pods))/3*(1+slow.Seconds())) + len(pods)/10 + 1; most > allowed {
		t.Errorf("%d DELETEs within a second, %d allowed where a request takes up to %v", most, allowed, slow)
	}

	t.Logf("of %d pods with %d failed DELETEs each, all left within %v of the last of them; then %d DELETEs a second at most",
		len(pods), *failing, worst.Round(time.Millisecond), most)
}

// feelThePulse repeatedly sends a small request, to measure the cluster's current latency.
func (s *stage) feelThePulse(ctx context.Context) {
	beats := time.NewTicker(100 * time.Millisecond)
	defer beats.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case began := <-beats.C:
			if _, err := s.client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{}); err == nil {
				s.timed(began)
			}
		}
	}
}
