// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictiontest

import (
	"time"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// Controller is the controller under test, over all its lives: it can be killed, and restarted
// without state. Responses and alarms of an earlier life are dropped, because a new process never
// receives the responses of an old one.
type Controller struct {
	world *World
	// NewCore makes the controller's core, initially and after each crash.
	NewCore func() *eviction.Core
	// Told, if set, is called with each of the controller's events and its actions.
	Told func(event eviction.Event, actions []eviction.Action)
	// Ahead is the time by which the controller's wall clock is ahead of the API server's clock.
	Ahead time.Duration

	core   *eviction.Core // nil: crashed
	life   int            // incremented by Start and Crash; responses for earlier lives are lost
	wakeAt time.Time      // time of the alarm; zero if none is set
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

// Crash kills the controller. Its state, its queued events and outstanding responses are lost, but
// requests already sent are carried out.
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

// Running reports whether the controller is running.
func (c *Controller) Running() bool { return c.core != nil }

// Core returns the controller's core, or nil if it is not running.
func (c *Controller) Core() *eviction.Core { return c.core }

// stepCore passes an event to the controller and carries out its actions. Without a running
// controller, the event is lost.
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
		// An alarm of an earlier life, or a replaced alarm, has no effect.
		life := c.life
		c.world.After(max(0, at.Sub(c.world.Now)), func() {
			if c.life == life && c.wakeAt.Equal(at) {
				c.wakeAt = time.Time{}
				c.stepCore(eviction.Tick{})
			}
		})
	}
}
