// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestCountdownSurvivesKills verifies that pods are evicted on time although the controller is
// killed six times during their tolerationSeconds. kubectl writes no timeAdded, so Berth's
// annotation must keep the time. The taints of one node are rewritten during that time. The other
// node was created without taints, so the API server's managed fields do not contain the time
// either.
func TestCountdownSurvivesKills(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n", nil)
	_, err := c.client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}, metav1.CreateOptions{})
	c.must(err)
	c.pod("p", "n", tolerates("a", 16), tolerates("b"))
	c.pod("q", "bare", tolerates("a", 16))
	c.pod("stays", "n", tolerates("a", 12), tolerates("b"))
	p := startController(t, c.kubeconfig, alone)
	began := time.Now()
	c.kubectl("taint", "nodes", "n", "bare", "a=x:NoExecute")
	<-time.After(1500 * time.Millisecond)
	c.kubectl("taint", "nodes", "n", "b=x:NoExecute")
	for _, node := range []string{"n", "bare"} {
		c.within(time.Minute, "note on node "+node, func() bool {
			n, err := c.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
			return err == nil && strings.Contains(n.Annotations["berth.dev/taints-since"], `"of":`)
		})
	}
	var last time.Duration // time of the last start
	for i := range 6 {
		p.kill()
		if i == 1 { // a change while no controller runs
			stageOf(c).tolerate("stays", 3600)
		}
		<-time.After(200 * time.Millisecond)
		p = startController(t, c.kubeconfig, alone)
		last = time.Since(began)
		<-time.After(600 * time.Millisecond)
	}
	// On a slow machine, the six starts may take longer than the pods tolerate the taint. A
	// controller that forgets the time would evict the pods 16 s after the last start.
	latest := max(18*time.Second, last+8*time.Second)
	for _, pod := range []string{"p", "q"} {
		c.within(time.Minute, "evicted", func() bool { return c.leaves(pod) })
		after := time.Since(began)
		if after < 15*time.Second || after > latest {
			t.Errorf("%s evicted %v after the taint, want 16 s; the last start was after %v", pod, after, last)
		}
		t.Logf("%s evicted %v after the taint", pod, after)
	}
	c.stays("stays")
}

// TestAlternatingNodeLosesItsPods verifies that the pods of a node that alternates between
// not-ready and unreachable every 2 s are evicted when the total time reaches their
// tolerationSeconds, although the controller is replaced during that time.
func TestAlternatingNodeLosesItsPods(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := newCluster(t)
	c.node("well", nil)
	c.node("n", nil)
	c.pod("p", "n", tolerates(v1.TaintNodeNotReady, 12), tolerates(v1.TaintNodeUnreachable, 12))
	c.pod("stays", "n", tolerates(v1.TaintNodeNotReady), tolerates(v1.TaintNodeUnreachable, 6))
	args := []string{alone, "--node-monitor-period=200ms", "--node-eviction-rate=10"}
	p := startController(t, c.kubeconfig, args...)
	c.condition("n", v1.NodeReady, v1.ConditionFalse)
	c.within(time.Minute, "a taint that evicts", func() bool { return c.hasTaint("n", v1.TaintNodeNotReady+":NoExecute") })
	began := time.Now()
	for turn := 1; !c.leaves("p"); turn++ {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("still there after %d turns and 30 s", turn)
		}
		<-time.After(2 * time.Second)
		if turn == 3 {
			p.kill()
			p = startController(t, c.kubeconfig, args...)
		}
		key, status := v1.TaintNodeUnreachable, v1.ConditionUnknown
		if turn%2 == 0 {
			key, status = v1.TaintNodeNotReady, v1.ConditionFalse
		}
		c.condition("n", v1.NodeReady, status)
		c.within(time.Minute, key, func() bool { return c.hasTaint("n", key+":NoExecute") })
	}
	if after := time.Since(began); after < 10500*time.Millisecond || after > 16*time.Second {
		t.Errorf("evicted %v after the first taint, want 12 s", after)
	}
	c.stays("stays")
}

func stageOf(c *cluster) *stage { return &stage{cluster: c} }

// TestLeaderIsReplaced verifies that after the leader of two controllers is killed, the other
// controller evicts pods on time, for taints of the node and for taints of devices in a slice and
// by a rule.
func TestLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n", nil)
	lead := []string{"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms"}
	first := startController(t, c.kubeconfig, lead...)
	c.within(time.Minute, "a leader", func() bool {
		lease, err := c.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "berth-controller", metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
	})
	second := startController(t, c.kubeconfig, lead...)
	c.node("m", nil)
	c.pod("p", "m", tolerates("a", 9))
	c.pod("stays", "m", tolerates("a"))
	c.uses("one", "gpu-one", 9)
	c.uses("two", "gpu-two", 9)
	c.uses("other", "gpu-other", 0)
	c.tainted("gpu-one", "gpu-two", "gpu-other")
	c.recall("gpu-two")
	c.kubectl("taint", "nodes", "m", "a=x:NoExecute")
	began := time.Now()
	<-time.After(2 * time.Second)
	first.kill()
	for _, pod := range []string{"p", "one", "two"} {
		c.within(time.Minute, "evicted by the other", func() bool { return c.leaves(pod) })
		if after := time.Since(began); after < 6500*time.Millisecond || after > 12*time.Second {
			t.Errorf("%s evicted %v after the taint, want 9 s", pod, after)
		}
	}
	c.stays("stays")
	c.stays("other")
	second.stop()
}

// TestControlPlaneGoesAway verifies that pods that are due during an outage of the API server, or
// right after it, are evicted as soon as possible. First the API server's process is suspended for
// ten seconds, as on a swapping machine. Then it is killed, and restarted ten seconds later.
func TestControlPlaneGoesAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, plane := newClusterIn(t, dir)
	s := stageOf(c)
	s.diary = newDiary(t, c.client)
	p := startController(t, c.kubeconfig, alone, "--controllers=taint-eviction-controller")
	s.evicts(30 * time.Second)

	during, after := s.on("stopped-during", tolerates("a", 5)), s.on("stopped-after", tolerates("a", 14))
	s.taint("stopped-during", "a")
	tainted := s.taint("stopped-after", "a")
	<-time.After(time.Second)
	c.must(plane.Signal(syscall.SIGSTOP))
	<-time.After(outage)
	c.must(plane.Signal(syscall.SIGCONT))
	s.report("due while the API server is stopped", s.goesBy(during, time.Now()))
	s.report("due right after", s.goesAt(after, tainted.Add(14*time.Second)))

	during, after = s.on("killed-during", tolerates("a", 5)), s.on("killed-after", tolerates("a", 18))
	s.taint("killed-during", "a")
	tainted = s.taint("killed-after", "a")
	plane.Kill()
	<-time.After(outage)
	restarted := time.Now()
	startControlPlane(t, dir)
	s.late = time.Since(restarted) // a request sent during the start may hang as long, and is then repeated
	s.report("due while the API server is dead", s.goesBy(during, time.Now().Add(time.Second)))
	s.report("due after", s.goesAt(after, tainted.Add(18*time.Second)))
	p.stop()
}

func (s *stage) report(what, wrong string) {
	if wrong != "" {
		s.Errorf("%s: %s", what, wrong)
	}
}
