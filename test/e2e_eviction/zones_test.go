// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const unreachable = "node.kubernetes.io/unreachable:NoExecute"

// TestZones verifies the effects of failed zones on taints. Only the node-lifecycle-controller
// runs, so no pods are evicted. When one zone fails, its nodes must be tainted one by one at the
// zone's rate. When the other zone fails as well, all NoExecute taints must be removed. Then both
// zones recover. Pods must be marked as not ready at the same rate, and not while all zones have
// failed.
func TestZones(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	silent := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
	nodes := map[string][]string{}
	for zone := range silent {
		for i := range 3 {
			name := fmt.Sprintf("%s-%d", zone, i)
			nodes[zone] = append(nodes[zone], name)
			c.nodeIn(zone, name, silent[zone])
			c.pod("on-"+name, name)
			c.runs("on-" + name)
		}
	}
	p := startController(t, c.kubeconfig, alone, "--controllers=node-lifecycle-controller", "--mark-pods-at-zone-rate",
		"--node-monitor-period=300ms", "--node-monitor-grace-period=4s", "--node-eviction-rate=0.5")
	c.within(time.Minute, "ready", func() bool { status, _ := get(c, p.address+"/readyz"); return status == 200 })
	tainted := func(zone string) (n int) {
		for _, name := range nodes[zone] {
			if c.hasTaint(name, unreachable) {
				n++
			}
		}
		return n
	}
	marked := func(zone string) (n int) {
		for _, name := range nodes[zone] {
			if c.podCondition("on-"+name, v1.PodReady).Status == v1.ConditionFalse {
				n++
			}
		}
		return n
	}

	close(silent["a"])
	c.within(20*time.Second, "first node of a tainted", func() bool { return tainted("a") > 0 })
	c.within(20*time.Second, "all of zone a tainted", func() bool { return tainted("a") == 3 })
	if took := c.taintedWithin(nodes["a"]); took < 3*time.Second { // times are in whole seconds, so it may seem shorter
		t.Errorf("zone a tainted in %v, want 4 s: one each 2 s", took)
	}
	c.within(time.Minute, "pods of zone a marked", func() bool { return marked("a") == 3 })
	if tainted("b")+marked("b") > 0 {
		t.Error("zone b suffers for zone a")
	}

	close(silent["b"])
	c.within(20*time.Second, "no taint that evicts while every zone is down", func() bool { return tainted("a")+tainted("b") == 0 })
	<-time.After(3 * time.Second)
	if n := tainted("a") + tainted("b"); n > 0 {
		t.Errorf("%d nodes tainted while every zone is down", n)
	}
	if n := marked("b"); n > 1 { // the pods of the first node may be marked before the last node of the zone is silent
		t.Errorf("pods of %d nodes marked while every zone is down", n)
	}
	for _, zone := range []string{"a", "b"} {
		for _, name := range nodes[zone] {
			c.condition(name, v1.NodeReady, v1.ConditionTrue)
			c.stays("on-" + name)
		}
	}
	c.within(time.Minute, "all taints gone", func() bool {
		return tainted("a")+tainted("b") == 0 && len(c.taints("a-0"))+len(c.taints("b-2")) == 0
	})
	scrape(c, p, append(nodeHealthMetrics, "node_collector_zone_size{zone=\"")...)
	p.stop()
	for _, line := range []string{`zone=":a" from="Normal" to="FullDisruption"`, `zone=":b" from="Normal" to="FullDisruption"`, `to="Normal"`} {
		if !strings.Contains(p.log.String(), line) {
			t.Errorf("the log has no line with %s", line)
		}
	}
}

// taintedWithin returns the time between the first and the last unreachable taint of the nodes.
func (c *cluster) taintedWithin(names []string) time.Duration {
	c.Helper()
	var first, last time.Time
	for _, name := range names {
		n, err := c.client.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{})
		c.must(err)
		for i := range n.Spec.Taints {
			if t := &n.Spec.Taints[i]; t.ToString() == unreachable && t.TimeAdded != nil {
				if first.IsZero() || t.TimeAdded.Time.Before(first) {
					first = t.TimeAdded.Time
				}
				last = later(last, t.TimeAdded.Time)
			}
		}
	}
	return last.Sub(first)
}
