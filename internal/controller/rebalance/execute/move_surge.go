// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// recoverSurges gives up the surge of the journaled move and, with the option Surge, other surges
// older than surgesFor. Without the option, Berth may lack the permission to write scales, so only
// the surge of the journaled move is recovered: the journal proves that the permission existed.
func (c *Core) recoverSurges() {
	f := c.journal.Move
	if own := f != nil && f.Surge != nil; own || c.options.Surge {
		c.surges.recover(func(p *v1.Pod, _ surgeNote) bool { return own && p.UID == f.UID })
	}
}

// followSurges advances the move's surge, or the surges left behind by an earlier process. It runs
// on each event in the phases surging and restoring. A stop gives up surges before the point of no
// return; see [surges.follow].
func (c *Core) followSurges() {
	stopped := ""
	if c.stopping {
		stopped = interrupted
	}
	c.at = time.Time{}
	c.surges.follow(stopped)
	if c.phase == restoring && len(c.surges.list) == 0 {
		c.run.settling = c.now.Add(settlesFor)
		c.resume()
	}
}

// surgeEnded withholds the move if its surge was abandoned.
func (c *Core) surgeEnded(s *surge) {
	switch m := c.move; {
	case c.phase == restoring || s.why == "": // the pod leaves, so the move continues like any other
	// The workload was not scaled, so the move is not withheld.
	case s.outdated:
		c.postpone(m, c.paced(m.UID))
		c.drop()
		c.again()
	case c.victim(m) == nil:
		c.conclude(Ended, "", s.why)
	default:
		if s.final { // the next run would fail for the same reason
			c.rest(m.flight.Workload(), true)
		}
		m.answer = s.why
		c.conclude(Withheld, "", s.why)
	}
}
