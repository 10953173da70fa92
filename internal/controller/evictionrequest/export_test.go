// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest

// Entries returns the number of entries in all tables.
func (c *Core) Entries() int {
	return len(c.targets) + len(c.requests.at) + len(c.requests.round) + len(c.evictions.at) + len(c.evictions.round) +
		len(c.flights) + len(c.writtenKind) + len(c.queue) + c.timers.Len()
}
