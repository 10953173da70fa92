package cycle

// Calm tells that nothing is under way: no unanswered action, no placement, no victim on its way
// out, no list. A new core that is shown the same objects then knows as much about the world as
// this one.
func (c *Core) Calm() bool {
	if !c.Synced() || len(c.placements.byPod)+len(c.errands)+len(c.preemptions.rounds)+len(c.preemptions.leaving) > 0 ||
		len(c.claims.byName)+len(c.conditions.list) > 0 {
		return false
	}
	for _, m := range c.mirrors {
		if m.isListing() {
			return false
		}
	}
	return true
}

// Succeed makes this core take the place of another one that was calm: it adopts the remembered
// decisions, which it does not use to decide. The other core's queue is emptied, so that no pod is
// counted twice.
func (c *Core) Succeed(other *Core) {
	for _, item := range other.queue.Sorted() {
		other.queue.Remove(item.Pod.UID)
	}
	c.decisions = other.decisions
}
