// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"time"

	"github.com/berth-k8s/berth/internal/response"
)

// suspectNode requests a read of a seemingly silent node's Lease, unless a read is pending, because
// the watch may lag without being broken. Upstream calls this safeguard a circuit breaker. A
// recount requests no reads; the next pass does.
//
// Without the read, a watch lagging by more than the grace period would make all nodes of a cluster
// look silent simultaneously. With the read, the first Lease reveals the lag, and no node is judged
// until the watch has caught up.
func (c *Core) suspectNode(n *node) {
	if !n.asked && !c.recount {
		n.asked = true
		c.suspects = append(c.suspects, n)
	}
}

// readLeases requests reads of the suspects' Leases, with at most InFlight reads in flight.
func (c *Core) readLeases() {
	for len(c.suspects) > 0 && len(c.reading) < c.options.InFlight {
		n := c.suspects[0]
		c.suspects = c.suspects[1:]
		c.record.Tickets++
		c.reading[c.record.Tickets] = n
		c.addAction(ReadLease{Ticket: c.record.Tickets, Node: n.Name})
	}
}

// leaseRead handles the response to the read of a suspect's Lease. If the Lease does not exist, or
// the watch has already delivered its last renewal, the node is silent. If the Lease was renewed
// later, the watch lags, and no node is judged before the watch has caught up, or isBehind returns
// false. After any other response, the next pass suspects the node again. When no reads remain, all
// nodes are examined again.
func (c *Core) leaseRead(now time.Time, n *node, answer Answered) {
	n.asked = false
	switch known := c.leases[n.Name]; {
	case n.Gone || n.Silent:
	case answer.Outcome == response.OK && !answer.Lease.Renewed.Equal(known.Renewed):
		c.leaseSeen(now, *answer.Lease)
		if !isOlder(answer.Lease.ResourceVersion, known.Version) {
			if c.record.Behind == "" {
				c.record.BehindAt = now
			}
			c.record.Behind = answer.Lease.ResourceVersion
		}
	case answer.Outcome == response.OK, answer.Outcome == response.Gone:
		if c.isOverdue(now, n) && !c.isBehind(now) && c.record.BlindSince.IsZero() {
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
	return now.After(n.Sign.Add(grace))
}
