// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"cmp"

	"github.com/berth-k8s/berth/internal/response"
)

// recall handles the journal read from the API. An unreadable journal ends the run: it may contain
// a move, and a second one must not begin.
func (c *Core) recall(e Recalled) {
	if e.Err != nil {
		c.run.stopped = "the journal cannot be read: " + e.Err.Error()
		c.done()
		return
	}
	c.journal.load(e)
}

// end writes the final state of the run, unless the journal is unchanged.
func (c *Core) end() {
	if c.stopping && c.run.stopped == "" {
		c.run.stopped = interrupted
	}
	c.journal.Move = nil
	if !c.journal.dirty {
		c.done()
		return
	}
	c.enter(ending)
	c.note()
}

// note writes the current journal. The response goes to noted.
func (c *Core) note() {
	c.journal.write = c.nextTicket()
	c.addAction(Note{Ticket: c.journal.write, Journal: c.journal.copied(), Version: c.journal.version})
}

// noted continues once the journal has been written.
//
// The eviction follows immediately and cannot be undone, so noted rechecks everything that may have
// changed during the write.
func (c *Core) noted(e Answered) {
	switch {
	case e.Outcome == response.OK:
		c.journal.saved(e.Version)
		c.run.failed = 0
	case e.Outcome == response.Gone && c.journal.version != "": // another client has deleted the journal
		// The journal is recreated.
		c.journal.version = ""
		c.note()
		return
	case e.Outcome == response.Conflict:
		c.yield()
		return
	// Repeating the write is harmless: if the first one succeeded, package movecontroller finds
	// its own journal there.
	case e.Outcome != response.Refused && c.run.failed < 3:
		c.run.failed++
		c.note()
		return
	case c.phase == noting:
		c.drop()
		c.finish("the journal cannot be written: " + e.Message)
		return
	default:
		c.run.stopped = cmp.Or(c.run.stopped, "the journal cannot be written: "+e.Message)
		c.done()
		return
	}
	if c.phase == ending {
		c.done()
		return
	}
	if c.stopping {
		c.finish(interrupted)
		return
	}
	if c.proof.outdated(&c.move.flight.Move) {
		c.drop()
		c.again()
		return
	}
	c.followed(&c.move.flight.Move)
	if c.move.Surge != nil {
		c.enter(surging) // the move is already journaled, so that a new process undoes the scale
		c.surges.begin(c.move)
		return
	}
	c.enter(evicting)
	c.evict(c.move)
}

// yield ends a run because another process has written the journal and therefore carries out moves.
// The run reopens only the nodes it has closed itself; the journal belongs to the other process.
// Two processes sharing a journal would keep outdating each other's plans.
func (c *Core) yield() {
	c.run.stopped = cmp.Or(c.run.stopped, "another process is executing moves: it wrote the journal")
	c.move = nil
	c.journal.lost()
	if c.phase == ending {
		c.done()
		return
	}
	c.close(nil)
}

// rest stops moving pods of a workload for some time, and after a miss also for the rest of this
// run. Without a miss, other pods of the workload may still be moved in this run.
func (c *Core) rest(workload string, missed bool) {
	if rest := c.journal.rest(workload, missed, c.wall()); missed {
		c.run.resting[workload] = rest
	}
}
