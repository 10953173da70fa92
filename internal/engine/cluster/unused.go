// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

// DropUnused drops the data kept for large deleted pods, and for deleted objects. All such data is
// bounded, but the bounds are enforced only on additions: without additions, the data of a tenant's
// deleted objects would remain. Call it from time to time. It does not affect holders of a class.
func (c *Cluster) DropUnused() {
	c.classes.dropLarge()
	c.Log.dropOld()
	c.claimSelectors.dropGone(c.Claims.hasObject)
	if c.budgets.spaces != nil { // without budgets there are no queries, which would follow the table
		c.budgets.follow(&c.Budgets)
	}
	c.budgets.selectors.dropGone(c.Budgets.hasObject)
	for _, s := range c.budgets.spaces {
		s.dropLarge()
	}
}
