// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// limiter is the default rate limit of client-go: 5 requests per second, after a burst of 10.
type limiter struct{ next time.Time }

// wait returns the time until the next request may be sent.
func (l *limiter) wait(now time.Time) time.Duration {
	const every = 200 * time.Millisecond
	if least := now.Add(-9 * every); l.next.Before(least) {
		l.next = least
	}
	at := l.next
	l.next = at.Add(every)
	return max(at.Sub(now), 0)
}

// kubectl is a kubectl drain of a node. It evicts all pods concurrently, repeats refused evictions
// after 5 s, and polls the end of evicted pods every second. Its clients of the API groups policy
// and core have a rate limit each.
type kubectl struct {
	*guarded
	unguarded    bool
	policy, core limiter
	left         int // pods
	done         func()
}

// send sends a request when the limit allows.
func (k *kubectl) send(l *limiter, do func()) {
	k.After(l.wait(k.Now)+20*time.Millisecond, do)
}

func (k *kubectl) evictPod(uid types.UID) {
	p := k.pod(uid)
	switch {
	case p == nil:
		k.gone()
		return
	case !k.unguarded:
		k.evict(p)
	case k.blocked(p) == "":
		k.terminate(p)
	}
	if k.pod(uid).DeletionTimestamp != nil {
		k.poll(uid)
		return
	}
	k.After(5*time.Second, func() { // then kubectl reads the pod
		k.send(&k.core, func() { k.send(&k.policy, func() { k.evictPod(uid) }) })
	})
}

func (k *kubectl) poll(uid types.UID) {
	k.send(&k.core, func() {
		if k.pod(uid) == nil {
			k.gone()
			return
		}
		k.After(time.Second, func() { k.poll(uid) })
	})
}

func (k *kubectl) gone() {
	if k.left--; k.left == 0 {
		k.done()
	}
}

// cordon sets the schedulability of a node.
func (k *kubectl) cordon(node string, on bool) {
	n := k.node(node).DeepCopy()
	n.Spec.Unschedulable = on
	k.write(n)
}

// empty drains a node, and then opens it again.
func (k *kubectl) empty(node string, then func()) {
	k.cordon(node, true)
	k.done = func() {
		k.cordon(node, false)
		then()
	}
	for _, p := range k.pods() {
		if p.Spec.NodeName == node {
			k.left++
			k.send(&k.policy, func() { k.evictPod(p.UID) })
		}
	}
}

// drawPaced draws Deployments with their pods on random nodes, mostly on different ones. With
// budgets, some allow only one disruption.
func drawPaced(r *rand.Rand, nodes, perNode, replicas int, budgets bool) string {
	var b strings.Builder
	var on []int
	for i := range nodes {
		fmt.Fprintf(&b, "node n%d cpu=%d\n", i, 2*perNode)
	}
	for range perNode {
		on = append(on, r.Perm(nodes)...)
	}
	for i := range nodes * perNode / replicas {
		fmt.Fprintf(&b, "deployment w%d surge=%d\n", i, min(replicas, 3))
		for j := range replicas {
			fmt.Fprintf(&b, "pod w%d-%d on=n%d cpu=1 label=app:w%d owner=ReplicaSet/w%d\n", i, j, on[i*replicas+j], i, i)
		}
		if budgets && i%4 == 0 {
			fmt.Fprintf(&b, "budget w%d of=app:w%d unavailable=1\n", i, i)
		}
	}
	return strings.TrimSpace(b.String())
}

// TestKubectlKeepsItsPace drains nodes with and without the guard. A pod is ready after 3 s, so its
// eviction is refused at least once, but most of the time is due to kubectl's rate limit. Only the
// guarded workloads have budgets, because drains without the guard would also wait for these. On
// small nodes and with slow requests, the guard misses its goal of 1.5 times the duration.
func TestKubectlKeepsItsPace(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, perNode, replicas, parallel, drains int
		latency                                    time.Duration // each way, of the guard's requests
		most                                       float64       // times as long
	}{
		"two at a time":      {12, 30, 3, 2, 4, 10 * time.Millisecond, 1.5},
		"four at a time":     {40, 30, 12, 4, 4, 10 * time.Millisecond, 1.6},
		"a slow API server":  {40, 30, 12, 4, 4, 400 * time.Millisecond, 1.8},
		"nodes with 14 pods": {40, 14, 12, 4, 8, 10 * time.Millisecond, 2.2},
	} {
		t.Run(name, func(t *testing.T) {
			took := map[bool]time.Duration{}
			for _, unguarded := range []bool{true, false} {
				g := newGuarded(t, 1, drawPaced(rand.New(rand.NewPCG(1, 7)), c.nodes, c.perNode, c.replicas, !unguarded))
				g.leaves, g.guard.Share = nil, 1 // as many surges as pods of the nodes
				g.line.Least, g.line.Most = c.latency, c.latency
				if !unguarded {
					g.startGuard()
				}
				next, drained := 0, 0
				var begin func()
				begin = func() {
					if next == c.drains {
						return
					}
					node, begun := fmt.Sprintf("n%d", next), g.Now
					next++
					(&kubectl{guarded: g, unguarded: unguarded}).empty(node, func() {
						drained++
						took[unguarded] += g.Now.Sub(begun) / time.Duration(c.drains)
						begin()
					})
				}
				for range c.parallel {
					begin()
				}
				g.pass(2 * time.Minute)
				if drained < c.drains {
					t.Errorf("unguarded %v: %d of %d nodes were drained", unguarded, drained, c.drains)
				}
				g.report(1)
			}
			t.Logf("a node took %v with the guard, and %v without", took[false], took[true])
			if ratio := took[false].Seconds() / took[true].Seconds(); ratio > c.most {
				t.Errorf("%.2f times as long, want at most %v", ratio, c.most)
			}
		})
	}
}
