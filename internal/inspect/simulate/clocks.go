// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// clocks determines the trusted times in manifests. Times come from the API server's clock, which
// is trusted, and from kubelets' clocks, some of which may be wrong. A healthy kubelet renews its
// Lease every ten seconds and its status every five minutes, so the latest times of kubelets with
// correct clocks are close together.
//
// The world begins at the latest trusted time. Otherwise a single kubelet with a clock one hour
// ahead would advance the start by an hour, and all other nodes would look dead.
type clocks struct {
	server time.Time // latest time written by the API server
	// limit is the latest time trusted from a kubelet, based on the median of the kubelets' times;
	// zero without any kubelet time.
	limit time.Time
	// ahead lists the nodes with clocks beyond limit, sorted by name.
	ahead []string
}

// leasesDiffer and heartbeatsDiffer are the maximum differences between the last writes of healthy
// kubelets.
const (
	leasesDiffer     = 2 * time.Minute
	heartbeatsDiffer = 6 * time.Minute
)

// clocksOf reads the times of a set. It prefers Leases to heartbeats, because more frequent writes
// reveal more about the clocks.
func clocksOf(set *manifest.Set) *clocks {
	c := &clocks{}
	for _, n := range set.Nodes {
		c.seeServer(n.CreationTimestamp.Time)
	}

	for _, p := range set.Pods {
		c.seeServer(p.CreationTimestamp.Time)
	}
	last, differ := map[string]time.Time{}, heartbeatsDiffer
	for _, n := range set.Nodes {
		for i := range n.Status.Conditions {
			if at := n.Status.Conditions[i].LastHeartbeatTime.Time; at.After(last[n.Name]) && disruption.ReadinessOf(n) == v1.ConditionTrue {
				last[n.Name] = at
			}
		}
	}

	if leases := renewalsOf(set); len(leases) > 0 {
		last, differ = leases, leasesDiffer
	}
	if len(last) == 0 {
		return c
	}

	all := slices.SortedFunc(maps.Values(last), time.Time.Compare)
	// The median is right as long as fewer than half of the clocks are ahead. The API server's
	// times are credible in any case.
	c.limit = pacing.Later(all[(len(all)-1)/2].Add(differ), c.server)

	for name, at := range last {
		if at.After(c.limit) {
			c.ahead = append(c.ahead, name)
		}
	}

	slices.Sort(c.ahead)
	return c
}

// seeServer records a time written by the API server.
func (c *clocks) seeServer(t time.Time) { c.server = pacing.Later(c.server, t) }

// isCredible reports whether a time is within the limit. Without a limit, all times are credible.
func (c *clocks) isCredible(t time.Time) bool { return c.limit.IsZero() || !t.After(c.limit) }

// renewalsOf returns the Lease renewal times by node, for nodes that are ready or missing from the
// set. The renewal time of a failed node reflects its failure and is no evidence about clocks.
func renewalsOf(set *manifest.Set) map[string]time.Time {
	unready := map[string]bool{}
	for _, n := range set.Nodes {
		if ready := disruption.ReadinessOf(n); ready != "" && ready != v1.ConditionTrue {
			unready[n.Name] = true
		}
	}
	at := map[string]time.Time{}
	for _, l := range set.Leases {
		if l.Namespace == v1.NamespaceNodeLease && l.Spec.RenewTime != nil && !unready[l.Name] {
			at[l.Name] = l.Spec.RenewTime.Time
		}
	}
	return at
}

// ClocksAhead lists the nodes with clocks too far ahead of the rest to be trusted.
func ClocksAhead(set *manifest.Set) []string { return clocksOf(set).ahead }

// startOf returns the start of the simulation: the latest trusted time in the manifests. It does
// not read the wall clock, because a recording has its own time and the result must not depend on
// the time of the request. Without any time, as in hand-written manifests, it returns an arbitrary
// constant, the same in every run.
func (c *clocks) startOf(set *manifest.Set) time.Time {
	latest := c.server
	see := func(t time.Time) {
		if t.After(latest) && c.isCredible(t) {
			latest = t
		}
	}

	for _, n := range set.Nodes {
		for i := range n.Spec.Taints {
			if added := n.Spec.Taints[i].TimeAdded; added != nil {
				see(added.Time)
			}
		}
		for i := range n.Status.Conditions {
			see(n.Status.Conditions[i].LastHeartbeatTime.Time)
			see(n.Status.Conditions[i].LastTransitionTime.Time)
		}
	}

	for _, p := range set.Pods {
		if p.Status.StartTime != nil {
			see(p.Status.StartTime.Time)
		}
		for i := range p.Status.Conditions {
			see(p.Status.Conditions[i].LastTransitionTime.Time)
		}
	}

	for _, l := range set.Leases {
		if l.Spec.RenewTime != nil {
			see(l.Spec.RenewTime.Time)
		}
	}

	if latest.IsZero() {
		return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return latest
}

// findDead finds silent nodes: their Lease has expired, relative to the newest trusted renewal of
// any Lease. After a long silence a node is no longer ready, so a node that is still ready although
// its Lease expired long ago has a slow clock. grace is the delay until node health acts.
func (n *nodes) findDead(leases []*coordinationv1.Lease, c *clocks, grace time.Duration) {
	var newest time.Time
	for _, l := range leases {
		if l.Namespace == v1.NamespaceNodeLease && l.Spec.RenewTime != nil && l.Spec.RenewTime.After(newest) &&
			c.isCredible(l.Spec.RenewTime.Time) {
			newest = l.Spec.RenewTime.Time
		}
	}

	for _, l := range leases {
		m := n.named[l.Name]
		if m == nil || l.Namespace != v1.NamespaceNodeLease || l.Spec.RenewTime == nil {
			continue
		}
		lasts := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, int32(defaultLease/time.Second))) * time.Second
		// The age is relative to the newest renewal of all Leases, not to the reader's clock.
		age := newest.Sub(l.Spec.RenewTime.Time)
		behind := disruption.ReadinessOf(m.object) == v1.ConditionTrue && age > lasts+grace+leasesDiffer
		if age > lasts && !behind {
			m.dead, m.silent = true, -age
		}
	}
}

// silenceNode makes a node's kubelet stop responding. The node's last renewal is delivered with its
// original time, so the silence is not noticed until the grace period is over.
func (h *health) silenceNode(name string) {
	m := h.nodes.named[name]
	if m.dead {
		return
	}
	m.dead = true
	h.report.addEvent(Event{Kind: "NodeFailed", Node: name})
	// Node health ignores a node without reported conditions. Make all such nodes report from now
	// on, so that the failure is noticed and judged relative to the rest of the node's zone.
	if !m.isWatched() {
		h.reportReady(name)
	}
	if h.core != nil {
		h.showLease(name, lastRenewal(name, h.clock.now))
		h.extendAlert()
		h.unsettled = true
	}
}

// reportReady makes all nodes without reported conditions, as in hand-written manifests, report
// ready, unless their taints contradict it. Node health can then distinguish the failing node.
func (h *health) reportReady(failing string) {
	for _, name := range h.nodes.names() {
		m := h.nodes.named[name]
		if m.isWatched() || name != failing && slices.ContainsFunc(m.object.Spec.Taints, func(t v1.Taint) bool { return OfState(&t) }) {
			continue
		}
		h.nodes.changeNode(name, func(n *v1.Node) { setReady(n, h.clock.time()) })
		if !m.dead {
			h.showLease(name, lastRenewal(name, h.clock.now))
		}
	}
}

// reviveNode makes a node report again: it is ready, and its other conditions that are Unknown
// become False. It ignores a healthy node.
func (h *health) reviveNode(name string) {
	m := h.nodes.named[name]
	if !m.dead && disruption.ReadinessOf(m.object) == v1.ConditionTrue {
		return
	}
	m.dead = false
	h.report.addEvent(Event{Kind: "NodeRecovered", Node: name})
	h.nodes.changeNode(name, func(n *v1.Node) {
		setReady(n, h.clock.time())
		for i := range n.Status.Conditions {
			if c := &n.Status.Conditions[i]; c.Type != v1.NodeReady && c.Status == v1.ConditionUnknown {
				c.Status = v1.ConditionFalse
			}
		}
	})
	h.showLease(name, h.clock.now)
}

// setReady makes the node ready on behalf of its kubelet.
func setReady(n *v1.Node, now time.Time) {
	setCondition(n, v1.NodeCondition{
		Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.NewTime(now),
		LastTransitionTime: metav1.NewTime(now),
	})
}

// setCondition sets a condition of the node and replaces an earlier one of its type. It modifies n.
func setCondition(n *v1.Node, c v1.NodeCondition) {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == c.Type {
			n.Status.Conditions[i] = c
			return
		}
	}
	n.Status.Conditions = append(n.Status.Conditions, c)
}
