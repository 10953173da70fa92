// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
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

// drawPaced draws Deployments of three pods on different nodes. Some have a budget of one
// disruption.
func drawPaced(nodes, perNode int) string {
	var b strings.Builder
	for i := range nodes {
		fmt.Fprintf(&b, "node n%d cpu=%d\n", i, 2*perNode)
	}
	for i := range nodes * perNode / 3 {
		fmt.Fprintf(&b, "deployment w%d surge=3\n", i)
		for j := range 3 {
			fmt.Fprintf(&b, "pod w%d-%d on=n%d cpu=1 label=app:w%d owner=ReplicaSet/w%d\n", i, j, (3*i+j)*7%nodes, i, i)
		}
		if i%4 == 0 {
			fmt.Fprintf(&b, "budget w%d of=app:w%d unavailable=1\n", i, i)
		}
	}
	return strings.TrimSpace(b.String())
}

// TestKubectlKeepsItsPace drains nodes with 30 pods, two at a time, with and without the guard. A
// pod is ready after 3 s, so its eviction is refused once, but most of the time is due to kubectl's
// rate limit.
func TestKubectlKeepsItsPace(t *testing.T) {
	const nodes, perNode, parallel, drains = 12, 30, 2, 4
	took := map[bool]time.Duration{}
	for _, unguarded := range []bool{true, false} {
		g := newGuarded(t, 1, drawPaced(nodes, perNode))
		g.leaves, g.guard.Share = nil, 0.2 // as many surges as pods of two nodes
		if !unguarded {
			g.startGuard()
		}
		next, drained := 0, 0
		var begin func()
		begin = func() {
			if next == drains {
				return
			}
			node, begun := fmt.Sprintf("n%d", next), g.Now
			next++
			(&kubectl{guarded: g, unguarded: unguarded}).empty(node, func() {
				drained++
				took[unguarded] += g.Now.Sub(begun) / drains
				begin()
			})
		}
		for range parallel {
			begin()
		}
		g.pass(2 * time.Minute)
		if drained < drains {
			t.Errorf("unguarded %v: %d of %d nodes were drained", unguarded, drained, drains)
		}
		g.report(1)
	}
	t.Logf("a node took %v with the guard, and %v without", took[false], took[true])
	if took[false] > took[true]*3/2 {
		t.Error("more than 1.5 times as long")
	}
}
