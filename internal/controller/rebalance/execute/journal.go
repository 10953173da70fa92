package execute

import (
	"cmp"
)

// recall handles the journal as read from the API. A journal that cannot be read ends the run: it
// may have a move in it, and a second one must not begin.
func (c *Core) recall(e Recalled) {
	if e.Err != nil {
		c.run.stopped = "the journal cannot be read: " + e.Err.Error()
		c.done()
		return
	}
	c.journal.load(e)
}

// end writes what the run leaves behind. A journal that is as it was in the API is not written
// again.
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

// note writes the journal as it is now. The answer comes to noted.
func (c *Core) note() {
	c.journal.write = c.nextTicket()
	c.do(Note{Ticket: c.journal.write, Journal: c.journal.copied(), Version: c.journal.version})
}

// noted continues once the journal has been written.
//
// It is the point of no return of a move: right after it, the victim is evicted. So everything that
// may have changed during the write is looked at once more.
func (c *Core) noted(e Answered) {
	switch {
	case e.Outcome == OK:
		c.journal.saved(e.Version)
		c.run.failed = 0
	case e.Outcome == NotFound && c.journal.version != "": // somebody has deleted it
		// It is made anew.
		c.journal.version = ""
		c.note()
		return
	case e.Outcome == Conflict:
		c.yield()
		return
	// The same write is harmless to repeat: if the first was carried out, package live finds its
	// own journal there.
	case e.Outcome != Refused && c.run.failed < 3:
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
		c.beginSurge()
		return
	}
	c.enter(evicting)
	c.evict(c.move)
}

// yield ends a run because another process has written the journal: that one carries out moves. Of
// the nodes that are closed, this run opens those that it has closed itself; the journal is the
// other's. Two processes with the same journal would take turns at outdating each other's plans.
func (c *Core) yield() {
	c.run.stopped = cmp.Or(c.run.stopped, "another process carries out moves: it wrote the journal")
	c.move = nil
	c.journal.lost()
	if c.phase == ending {
		c.done()
		return
	}
	c.close(nil)
}

// rest leaves a workload alone, after a miss for the rest of this run, too. Without a miss, other
// pods of the workload may still be moved in this run.
func (c *Core) rest(workload string, missed bool) {
	if rest := c.journal.rest(workload, missed, c.wall()); missed {
		c.run.resting[workload] = rest
	}
}
