// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

// DropUnused drops the data kept for large deleted pods, and for deleted objects. All such data is
// bounded, but the bounds only act on additions: without any, a tenant's leftovers would stay. Call
// it from time to time. It does not affect holders of a class.
func (c *Cluster) DropUnused() {
	c.classes.dropLarge()
	c.Log.dropOld()
	c.claimSelectors.dropGone(c.Claims.hasObject)
	if c.budgets.spaces != nil { // there are no budgets any more, and no queries
		c.budgets.follow(&c.Budgets)
	}
	c.budgets.selectors.dropGone(c.Budgets.hasObject)
	for _, s := range c.budgets.spaces {
		s.dropLarge()
	}
}
