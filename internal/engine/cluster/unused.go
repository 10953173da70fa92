package cluster

// DropUnused forgets what is kept of large pods, and of objects, that are gone. All that is kept of
// them is bounded, but at a time when something comes: what a tenant has left would stay for as
// long as nothing does. It is called now and then. Nobody who holds a class notices.
func (c *Cluster) DropUnused() {
	c.classes.dropLarge()
	c.Log.dropOld()
	c.claimSelectors.dropGone(c.Claims.hasObject)
	if c.budgets.spaces != nil { // nobody asks where there are no budgets any more
		c.budgets.follow(&c.Budgets)
	}
	c.budgets.selectors.dropGone(c.Budgets.hasObject)
	for _, s := range c.budgets.spaces {
		s.dropLarge()
	}
}
