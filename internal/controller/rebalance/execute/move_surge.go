package execute

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// recoverSurges takes up the surge of the move in the journal and, with permission to surge, those
// that are older than a surge lasts. Without that permission the scales of others cannot be
// written, so only the Core's own surge is taken up, whose journal shows that it could.
func (c *Core) recoverSurges() {
	f := c.journal.Move
	if own := f != nil && f.Surge != nil; own || c.options.Surge {
		c.surges.recover(func(p *v1.Pod) bool { return own && p.UID == f.UID })
	}
}

// beginSurge has the victim leave after its successor is ready. The move is in the journal by now,
// so that a process that starts anew puts the scale back.
func (c *Core) beginSurge() {
	c.enter(surging)
	c.surges.begin(c.move)
}

// followSurges moves the surge of the move on, or those that an earlier process has left behind. It
// is called at each event of these two phases. A stop gives up what is not past the point of
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

// surgeEnded withholds a move whose surge was given up.
func (c *Core) surgeEnded(s *surge) {
	m := c.move
	switch {
	case c.phase == restoring || s.why == "": // the pod leaves, so it is a move like any other
	// Nothing was scaled, so there is nothing to withhold.
	case s.outdated:
		c.postpone(m, c.paced(m.UID))
		c.drop()
		c.again()
	case c.victim(m) == nil:
		c.conclude(Ended, "", s.why)
	default:
		if s.final { // the next run would wait for it in vain, too
			c.rest(m.flight.Workload(), true)
		}
		m.answer = s.why
		c.conclude(Withheld, "", s.why)
	}
}
