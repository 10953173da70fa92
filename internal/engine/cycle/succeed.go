package cycle

// Calm tells that nothing is under way: no action is to be answered, no pod is on its way to a
// node, no victim to its end, no list has begun. A core that is made anew and told what was seen
// then knows all that this one knows of the world.
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

// Succeed has a core take the place of another one that was calm. What was decided last is
// remembered; nothing is decided by it. The other one's pods leave its queue, so that they are
// counted once.
func (c *Core) Succeed(other *Core) {
	for _, item := range other.queue.Sorted() {
		other.queue.Remove(item.Pod.UID)
	}
	c.decisions = other.decisions
}
