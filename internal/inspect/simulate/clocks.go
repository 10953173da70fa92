package simulate

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// clocks tells which of the times in manifests to trust. They were written by the API
// server's clock, which is trusted, and by those of kubelets, some of which may be wrong. A
// healthy kubelet renews its Lease every ten seconds and its status every five minutes, so
// most of these clocks agree.
//
// The world begins at the latest trusted time. One kubelet whose clock is an hour ahead would
// otherwise move that by an hour, and make all other nodes look dead.
type clocks struct {
	server time.Time // the latest time by the API server's clock
	// limit is the latest time that is trusted, judged by the median of the kubelets' clocks. It is
	// zero if no kubelet has written a time.
	limit time.Time
	// ahead are the nodes whose clocks are beyond limit, sorted by name.
	ahead []string
}

// Healthy kubelets differ in their last writes by no more than this.
const (
	leasesDiffer     = 2 * time.Minute
	heartbeatsDiffer = 6 * time.Minute
)

// clocksOf reads the times of a set. Leases are preferred to heartbeats, because they are
// written more often and so tell more about the clocks.
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
			if at := n.Status.Conditions[i].LastHeartbeatTime.Time; at.After(last[n.Name]) && readyOf(n) == v1.ConditionTrue {
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

	all := make([]time.Time, 0, len(last))
	for _, at := range last {
		all = append(all, at)
	}

	slices.SortFunc(all, time.Time.Compare)
	// The median is right as long as fewer than half of the clocks are ahead. The API
	// server's own times are credible in any case.
	c.limit = all[(len(all)-1)/2].Add(differ)
	if c.server.After(c.limit) {
		c.limit = c.server
	}

	for name, at := range last {
		if at.After(c.limit) {
			c.ahead = append(c.ahead, name)
		}
	}

	slices.Sort(c.ahead)
	return c
}

// seeServer takes in a time that the API server has written.
func (c *clocks) seeServer(t time.Time) {
	if t.After(c.server) {
		c.server = t
	}
}

// isCredible reports whether a time is within the limit. Without a limit, all are.
func (c *clocks) isCredible(t time.Time) bool { return c.limit.IsZero() || !t.After(c.limit) }

// renewalsOf returns the renewal times of Leases, by node, for nodes that are ready or not in
// the set. Those of others tell when they failed, and nothing about clocks.
func renewalsOf(set *manifest.Set) map[string]time.Time {
	unready := map[string]bool{}
	for _, n := range set.Nodes {
		if ready := readyOf(n); ready != "" && ready != v1.ConditionTrue {
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

// ClocksAhead lists the nodes whose clocks are so far ahead of the others' that their times are not
// trusted.
func ClocksAhead(set *manifest.Set) []string { return clocksOf(set).ahead }

// startOf is when the simulation begins: the latest time in the manifests that can be
// trusted. A recording has its own time, and the answer must not depend on when the question
// is asked: the wall clock is not read. Without any time, as in hand-written manifests, the
// simulation begins at an arbitrary one, the same in every run.
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

// findDead finds the nodes that have fallen silent: those whose Lease is older than its
// duration, by the newest trusted time. A node that has been silent for long is no longer
// ready; if one is ready although its Lease is that old, its clock is behind. grace is after
// how long node health acts.
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
		lasts := defaultLease
		if l.Spec.LeaseDurationSeconds != nil {
			lasts = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
		}
		// How old the Lease was when the newest of all Leases was renewed, not by the time of
		// the reader.
		age := newest.Sub(l.Spec.RenewTime.Time)
		behind := readyOf(m.object) == v1.ConditionTrue && age > lasts+grace+leasesDiffer
		if age > lasts && !behind {
			m.dead, m.silent = true, -age
		}
	}
}
