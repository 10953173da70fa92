// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

// Entries returns the number of entries in all tables.
func (c *Core) Entries() int {
	m, d := &c.mirror, &c.devices
	return len(m.nodes) + len(m.pods) + len(m.names) + len(c.deadlines.queue) + len(c.deadlines.pending) + len(c.evictor.attempts) + c.evictor.underway +
		len(d.users) + len(d.seen.claims) + len(d.seen.pools) + len(d.seen.slices) + len(d.seen.rules) + len(c.notes.written) + len(c.statuses.written)
}
