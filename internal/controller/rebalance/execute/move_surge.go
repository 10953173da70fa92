package execute

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
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
	m := c.move
	c.enter(surging)
	c.surges.grace = m.grace(c.cluster)
	c.surges.begin(&departure{
		Departure: rebalance.Departure{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Owner: m.Owner, From: m.From,
			To: m.To, Or: m.Or, Grace: m.Cost.GraceSeconds, Surge: m.Surge},
		owner: rules.Owner{Namespace: m.Namespace, UID: m.OwnerUID}, known: m.known,
	})
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

// surgeTold reports how far the move is. That the successor has a node is said when it is ready. It
// implements surgeHost, as do the methods below.
func (c *Core) surgeTold(s *surge, result Result, _, message string) {
	switch {
	case c.phase == restoring:
		c.do(Told{Result: result, Message: fmt.Sprintf("%s/%s: %s", s.Namespace, s.Name, message)})
	case result != Arrived && result != Restored: // what becomes of the move is said at its end
		c.tell(result, message)
	}
}

// surgeLeft reports that the victim is being removed by its own controller.
func (c *Core) surgeLeft(*surge) { c.tell(Replaced, "") }

// surgeEnded goes on with the move whose victim has left, or withholds it.
func (c *Core) surgeEnded(s *surge) {
	m := c.move
	switch {
	case c.phase == restoring:
	// From here on it is a move like any other: the successor is there, and follow looks at where.
	case s.why == "":
		c.move.evicted = c.now
		c.run.refusal = refusal{}
		c.enter(arriving)
		c.follow()
	// Nothing was scaled, so there is nothing to withhold.
	case s.outdated:
		c.drop()
		c.again()
	case c.cluster.pod(m.Namespace, m.Name, m.UID) == nil:
		c.conclude(Ended, "", s.why)
	default:
		if s.final { // the next run would wait for it in vain, too
			c.rest(m.Workload(), true)
		}
		m.last = s.why
		c.conclude(Withheld, "", s.why)
	}
}

// successorOf returns the successor of the one move that there is.
func (c *Core) successorOf(*departure) *v1.Pod { return c.move.successor(c.cluster) }
