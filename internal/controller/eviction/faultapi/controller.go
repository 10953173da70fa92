package faultapi

import (
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// Controller is the controller under test, over all its lives: it is killed and started again, and
// each time knows nothing. What was meant for an earlier life (an answer, an alarm) must not reach
// a later one, as no process gets another one's.
type Controller struct {
	world *World
	// NewCore makes the controller's core, at first and after each crash.
	NewCore func() *eviction.Core
	// Told, if set, is called with each of the controller's events and its actions.
	Told func(event eviction.Event, actions []eviction.Action)
	// Ahead is how far the controller's wall clock is ahead of the API's.
	Ahead time.Duration

	core   *eviction.Core // nil: crashed
	life   int            // number of the controller's life; what is meant for an earlier one is lost
	wakeAt time.Time      // the alarm that is set; zero if none is
}

// Wall is the controller's wall clock.
func (c *Controller) Wall(now time.Time) time.Time { return now.Add(c.Ahead) }

// Start starts a controller without any state. Its watches begin with full lists.
func (c *Controller) Start() {
	c.life++
	c.core, c.wakeAt = c.NewCore(), time.Time{}
	c.world.traceLine("controller started")
	c.world.podFeed.listAgain()
	c.world.nodeFeed.listAgain()
	c.world.Devices.feed.listAgain()
}

// Crash kills the controller. Its state, its queued events and the answers that it waits for are
// lost; its requests are carried out all the same.
func (c *Controller) Crash() {
	if c.core == nil {
		return
	}
	c.world.traceLine("controller killed")
	c.life++
	c.core = nil
	c.world.podFeed.loseUnshown()
	c.world.nodeFeed.loseUnshown()
	c.world.Devices.feed.loseUnshown()
	for _, n := range c.world.nodes {
		n.becomesDoubtful(c.world.Now)
	}
}

// Running reports whether there is a controller.
func (c *Controller) Running() bool { return c.core != nil }

// Core returns the controller's core, nil while there is none.
func (c *Controller) Core() *eviction.Core { return c.core }

// stepCore gives the controller an event and carries out its actions. What is shown while no
// controller runs is lost.
func (c *Controller) stepCore(event eviction.Event) {
	if c.core == nil {
		return
	}
	actions := c.core.Step(c.world.Now, event)
	if c.Told != nil {
		c.Told(event, actions)
	}

	for _, action := range actions {
		c.world.Requests.carryOut(action)
	}
	if at, ok := c.core.Wake(); ok && !at.Equal(c.wakeAt) {
		c.wakeAt = at
		// An alarm of an earlier life, or one that was replaced by another, must not ring.
		life := c.life
		c.world.After(max(0, at.Sub(c.world.Now)), func() {
			if c.life == life && c.wakeAt.Equal(at) {
				c.wakeAt = time.Time{}
				c.stepCore(eviction.Tick{})
			}
		})
	}
}
