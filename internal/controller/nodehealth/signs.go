// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-k8s/berth/internal/pacing"
)

// nodeSeen applies a node's newest state, from a watch, a list, or the response to a write. A
// heartbeat in the status is a sign of life at the time at which it is observed.
func (c *Core) nodeSeen(now time.Time, seen Node) {
	n := c.nodes[seen.Name]
	switch {
	case n == nil || n.UID != seen.UID:
		if n != nil {
			c.nodeGone(n)
		}
		n = &node{nodeRecord: nodeRecord{Sign: now}}
		if seen.readyStatus() == "" && c.record.Listing {
			// A listed node without status has the longer grace period since its creation. The API
			// server's clock may be ahead, so the start is at most now. A node delivered by the
			// watch has just been created.
			n.Sign = pacing.Earlier(now, now.Add(seen.Created.Sub(c.options.Wall.At(now))))
		}
		if l, ok := c.leases[seen.Name]; ok && l.Seen.After(n.Sign) {
			n.Sign = l.Seen
		}
		c.nodes[seen.Name], c.sorted.nodes = n, nil
	case isOlder(seen.ResourceVersion, n.ResourceVersion) && !c.record.Listing:
		return // the response to Berth's own write arrived before this event of the watch
	case !sameHeartbeat(seen.conditionOf(v1.NodeReady), n.conditionOf(v1.NodeReady)):
		c.noteAlive(n, now)
	}
	if n.Evict && n.hasEvicting() && !seen.hasEvicting() {
		n.Evict = false // another client removed the taint: the node must queue again
	}
	n.Node, n.List = seen, c.record.NodeList
	// An evicting taint of a previous controller is taken over: a change of leader must neither
	// restart the countdown nor use up the zone's rate again.
	n.Evict = n.Evict || !c.record.AllDown && n.hasEvicting() && n.effectiveStatus() != v1.ConditionTrue
	c.touchNode(n)
	c.stopMarking(n)
}

// hasEvicting reports whether the node has one of the two evicting taints.
func (n *Node) hasEvicting() bool {
	return slices.ContainsFunc(n.Taints, func(t v1.Taint) bool { return isEvicting(&t) })
}

// sameHeartbeat reports whether two versions of a condition have the same heartbeat. Times are
// compared only for equality, because they are by the node's clock.
func sameHeartbeat(a, b *v1.NodeCondition) bool {
	return a == nil && b == nil || a != nil && b != nil && a.LastHeartbeatTime.Equal(&b.LastHeartbeatTime)
}

// isOlder reports whether resource version a is older than b. It returns false for incomparable
// versions.
func isOlder(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// noteAlive records a sign of life. A silent node counts as alive immediately, without waiting for
// the next pass.
func (c *Core) noteAlive(n *node, now time.Time) {
	n.Sign = now
	if n.Silent {
		n.Silent = false
		c.touchNode(n)
		c.stopMarking(n)
	}
}

// leaseSeen applies a version of a Lease. It is a sign of life if its renewal time has changed,
// even backwards: the time is by the node's clock, and a clock that was ahead may have been
// corrected. Upstream considers such a node silent until its clock has caught up. An older resource
// version is ignored, unless its renewal time is later than the last one: then the API server was
// restored from a backup, and versions have restarted.
func (c *Core) leaseSeen(now time.Time, seen LeaseSeen) {
	if c.record.Behind != "" && !isOlder(seen.ResourceVersion, c.record.Behind) {
		c.record.Behind = ""
	}
	before, ok := c.leases[seen.Name]
	switch {
	case ok && seen.Renewed.Equal(before.Renewed):
		// The Lease was written without a renewal, for example annotated, which is not a sign of
		// life.
		if !isOlder(seen.ResourceVersion, before.Version) {
			before.Version = seen.ResourceVersion
			c.leases[seen.Name] = before
		}
		return
	case ok && isOlder(seen.ResourceVersion, before.Version) && !seen.Renewed.After(before.Renewed):
		return
	}
	c.leases[seen.Name] = lease{Renewed: seen.Renewed, Version: seen.ResourceVersion, Seen: now}
	if n := c.nodes[seen.Name]; n != nil {
		c.noteAlive(n, now)
	}
}

// endBlindness ends a period without visible signs of life.
func (c *Core) endBlindness(now time.Time) {
	if !c.record.BlindSince.IsZero() {
		c.forgiveSilence(c.record.BlindSince, now)
		c.record.BlindSince = time.Time{}
	}
}

// pollSeen handles a list while a watch is refused. The silence between two lists counts only if
// the lists are at most three quarters of a grace period apart; after a longer gap, the API server
// may have been unavailable, so that nodes could not renew their Leases.
func (c *Core) pollSeen(now time.Time) {
	if c.record.BlindSince.IsZero() {
		return
	}
	if now.Sub(c.record.BlindSince) > c.options.MonitorGracePeriod*3/4 {
		c.forgiveSilence(c.record.BlindSince, now)
	}
	c.record.BlindSince, c.polled, c.recount = now, true, true
}

// isBehind reports whether the watch is known to lag behind. It returns true for a grace period at
// most: if the watch has not caught up by then, nodes are judged by the Leases read.
func (c *Core) isBehind(now time.Time) bool {
	return c.record.Behind != "" && now.Sub(c.record.BehindAt) < c.options.MonitorGracePeriod
}

// forgiveSilence excludes a period from the nodes' silence: it moves the last sign of each node
// forward by its silence in that period. Nodes already counted as silent stay so.
//
// For example, a node's last sign was at 10:00:10 and the watch was broken from 10:00:20 to
// 10:00:50. Its sign becomes 10:00:40: of the 40 s of silence 10 s count.
func (c *Core) forgiveSilence(from, to time.Time) {
	for _, n := range c.nodes {
		if n.Sign.Before(to) && !n.Silent {
			n.Sign = n.Sign.Add(to.Sub(pacing.Later(from, n.Sign)))
		}
	}
}

// nodeGone removes a node. Queues and requests in flight may still refer to the node, so it is
// marked as gone.
func (c *Core) nodeGone(n *node) {
	delete(c.nodes, n.Name)
	c.sorted.nodes = nil
	delete(c.leases, n.Name)
	n.Gone = true
	if n.Known {
		c.addAction(Record{Node: n.Name, UID: n.UID, Reason: "RemovingNode", Message: "Node " + n.Name +
			" event: Removing Node " + n.Name + " from Controller"})
	}
}

// judgeSilence decides whether the node is silent. The decision is suspended while signs of life
// are invisible (blindSince), or while the watch is known to lag (behind).
func (c *Core) judgeSilence(now time.Time, n *node) {
	if n.Silent || !c.record.BlindSince.IsZero() && !c.polled || c.isBehind(now) || !c.isOverdue(now, n) {
		return
	}
	if c.options.ReadsLeases && !c.polled {
		c.suspectNode(n)
		return
	}
	c.markSilent(n)
}

// markSilent marks a node as silent. The consequences (the Unknown conditions, the taints and the
// mark on its pods) are written in the order of nextWrite.
func (c *Core) markSilent(n *node) {
	n.Silent = true
	if n.readyStatus() == v1.ConditionUnknown {
		return // the condition was written before, and the pods were marked
	}
	c.touchNode(n)
	if n.readyStatus() == v1.ConditionTrue {
		c.addAction(Record{Node: n.Name, UID: n.UID, Reason: "NodeNotReady", Message: "Node " + n.Name + " status is now: NodeNotReady"})
	}
	c.toMark(n)
}
