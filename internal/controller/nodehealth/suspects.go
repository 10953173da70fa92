// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import "time"

// suspectNode requests a read of a seemingly silent node's Lease, unless one is pending. The watch
// may lag without being broken; upstream calls this a circuit breaker. A recount suspects no nodes:
// new suspects wait for the next pass.
//
// Without the read, a watch lagging by more than the grace period would make all nodes of a cluster
// look silent simultaneously. With it, the first Lease read reveals the lag, and judgement is
// suspended until the watch has caught up.
func (c *Core) suspectNode(n *node) {
	if !n.asked && !c.recount {
		n.asked = true
		c.suspects = append(c.suspects, n)
	}
}

// readLeases reads as many suspects' Leases as allowed concurrently.
func (c *Core) readLeases() {
	for len(c.suspects) > 0 && len(c.reading) < c.options.InFlight {
		n := c.suspects[0]
		c.suspects = c.suspects[1:]
		c.tickets++
		c.reading[c.tickets] = n
		c.addAction(ReadLease{Ticket: c.tickets, Node: n.Name})
	}
}

// leaseRead handles the response to the read of a suspect's Lease. If the Lease was last renewed
// when the watch showed it, or does not exist, the node is silent. If it was renewed since, the
// watch is behind, and no node is judged before the watch has caught up, or isBehind ends. After
// any other response the next pass suspects the node again. After the last response the nodes are
// counted again.
func (c *Core) leaseRead(now time.Time, n *node, answer Answered) {
	n.asked = false
	known := c.leases[n.Name]
	switch {
	case n.gone || n.silent:
	case answer.Outcome == OK && !answer.Lease.Renewed.Equal(known.renewed):
		c.leaseSeen(now, *answer.Lease)
		if !isOlder(answer.Lease.ResourceVersion, known.version) {
			if c.behind == "" {
				c.behindAt = now
			}
			c.behind = answer.Lease.ResourceVersion
		}
	case answer.Outcome == OK, answer.Outcome == Gone:
		if c.isOverdue(now, n) && !c.isBehind(now) && c.blindSince.IsZero() {
			c.markSilent(n)
		}
	}
	c.recount = len(c.reading)+len(c.suspects) == 0
}

// isOverdue reports whether the node's grace period has passed.
func (c *Core) isOverdue(now time.Time, n *node) bool {
	grace := c.options.MonitorGracePeriod
	if n.readyStatus() == "" {
		grace = c.options.StartupGracePeriod
	}
	return now.After(n.sign.Add(grace))
}
