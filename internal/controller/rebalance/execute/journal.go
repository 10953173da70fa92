package execute

import (
	"cmp"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// recall handles the journal as read from the API.
func (c *Core) recall(e Recalled) {
	if e.Err != nil {
		c.run.stopped = "the journal cannot be read: " + e.Err.Error()
		c.done()
		return
	}
	c.recalled, c.version = true, e.Version
	c.journal = e.Journal
	if c.journal.Resting == nil {
		c.journal.Resting = map[string]Rest{}
	}
}

// end writes what the run leaves behind.
func (c *Core) end() {
	if c.stopping && c.run.stopped == "" {
		c.run.stopped = interrupted
	}
	c.journal.Move = nil
	if !c.dirty {
		c.done()
		return
	}
	c.enter(ending)
	c.note()
}

func (c *Core) note() {
	c.ticket = c.nextTicket()
	journal := Journal{Resting: maps.Clone(c.journal.Resting)}
	if c.journal.Move != nil {
		flight := *c.journal.Move
		journal.Move = &flight
	}
	c.do(Note{Ticket: c.ticket, Journal: journal, Version: c.version})
}

// noted continues once the journal has been written.
func (c *Core) noted(e Answered) {
	switch {
	case e.Outcome == OK:
		c.version, c.run.failed, c.dirty = e.Version, 0, c.journal.Move != nil
	case e.Outcome == NotFound && c.version != "": // somebody has deleted it
		c.version = ""
		c.note()
		return
	case e.Outcome == Conflict:
		c.yield()
		return
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
	if c.outdated(&c.move.Move) {
		c.drop()
		c.again()
		return
	}
	c.followed(&c.move.Move)
	if c.move.Surge != nil {
		c.beginSurge()
		return
	}
	c.enter(evicting)
	c.evict()
}

// yield ends a run because another process has written the journal: that one carries out moves. Of
// the nodes that are closed, this run opens those that it has closed itself; the journal is the
// other's.
func (c *Core) yield() {
	c.run.stopped = cmp.Or(c.run.stopped, "another process carries out moves: it wrote the journal")
	c.recalled = false // the version that was read is outdated
	c.move, c.journal.Move, c.dirty = nil, nil, false
	if c.phase == ending {
		c.done()
		return
	}
	c.close(nil)
}

// rest leaves a workload alone for some time. Each miss doubles the time.
func (c *Core) rest(workload string, missed bool) {
	before := c.journal.Resting[workload]
	rest := Rest{Until: metav1.NewTime(c.wall().Add(restsFor))}
	if missed {
		rest.Misses = before.Misses + 1
		rest.Until = metav1.NewTime(c.wall().Add(min(restsFor<<min(rest.Misses, 10), longestRest)))
	}
	c.journal.Resting[workload] = rest
	if missed {
		c.run.resting[workload] = rest
	}
}

// forgetRests drops what is over. A workload that missed is remembered for longestRest after that,
// so that the next miss adds to it.
func (c *Core) forgetRests() {
	for workload, rest := range c.journal.Resting {
		until := rest.Until.Time
		if rest.Misses > 0 {
			until = until.Add(longestRest)
		}
		if !until.After(c.wall()) {
			delete(c.journal.Resting, workload)
		}
	}

	for len(c.journal.Resting) > mostResting {
		first := ""
		for workload, rest := range c.journal.Resting {
			if first == "" || rest.Until.Time.Before(c.journal.Resting[first].Until.Time) ||
				rest.Until.Equal(ptr(c.journal.Resting[first].Until)) && workload < first {
				first = workload
			}
		}
		delete(c.journal.Resting, first)
	}
}

func ptr(t metav1.Time) *metav1.Time { return &t }
