// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

// Safeguards names the safeguards that tests can remove, to show that the removal is detected.
var Safeguards = []string{"UID", "live read", "retry", "timeAdded", "note", "witness", "device read"}

// Break removes one safeguard from a Core.
func (c *Core) Break(safeguard string) *Core {
	switch safeguard {
	case "UID":
		c.broke.noUID = true
	case "live read":
		c.broke.noLiveRead = true
	case "retry":
		c.broke.noRetry = true
	case "timeAdded":
		c.broke.noTimeAdded = true
	case "note":
		c.broke.noNote = true
	case "device read":
		c.broke.noDeviceRead = true
	case "witness":
		c.broke.noWitness = true
	default:
		panic("no such safeguard: " + safeguard)
	}
	return c
}

// Entries returns the number of entries in all tables.
func (c *Core) Entries() int {
	m, d := &c.mirror, &c.devices
	return len(m.nodes) + len(m.pods) + len(m.names) + len(c.deadlines.queue) + len(c.deadlines.pending) + len(c.evictor.attempts) + c.evictor.underway +
		len(d.users) + len(d.seen.claims) + len(d.seen.pools) + len(d.seen.slices) + len(d.seen.rules) + len(c.notes.written) + len(c.statuses.written)
}
