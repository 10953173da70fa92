// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

// Entries returns the number of entries in all tables.
func (c *Core) Entries() int {
	n := len(c.nodes) + len(c.leases) + len(c.zones) + len(c.dirty) + len(c.asked) + len(c.suspects) + len(c.reading) + c.marking
	for _, z := range c.zones {
		n += len(z.toTaint) + len(z.toMark)
	}
	return n
}
