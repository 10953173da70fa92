package execute

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// ask requests a plan for the current state.
//
// Taints of this run are not in the state (see [cluster.state]): a plan closes nodes itself, and
// says so for each of its moves.
func (c *Core) ask() {
	if c.stopping {
		c.finish(interrupted)
		return
	}
	c.enter(planning)
	// What happens from here on, until the plan is there, may outdate it.
	c.proof.restart(c.run.stale >= mostStale)
	resting := map[string]time.Time{}
	for workload, rest := range c.run.resting {
		resting[workload] = rest.Until.Time
	}
	c.do(MakePlan{
		State:   &rebalance.State{AsOf: c.wall(), World: c.cluster.opened()},
		Options: rebalance.Options{Surge: c.options.Surge, Resting: resting, Arrived: maps.Clone(c.run.arrived), Spent: c.run.spent},
	})
}

// later plans again after a pause.
func (c *Core) later(pause time.Duration) {
	c.enter(pausing)
	c.at = c.now.Add(pause)
}

// planned handles a plan, which is as old as it took to make. One that comes in another phase is of
// no use.
func (c *Core) planned(plan *rebalance.Plan) {
	if c.phase != planning {
		return
	}
	c.plan = plan
	switch {
	case c.stopping:
		c.finish(interrupted)
		return
	case len(plan.Moves) > 0 && c.proof.outdated(&plan.Moves[0]):
		c.again()
		return
	// The plan has placed these pods where it thinks the scheduler will. It is better to see where
	// they really go.
	case len(plan.Moves) > 0 && c.places(plan):
		c.later(firstPause)
		return
	// 2 s: statuses catch up within seconds, and each look costs a plan.
	case len(plan.Moves) == 0 && lags(plan) && c.now.Before(c.run.settling):
		c.later(2 * time.Second)
		return
	case !c.run.told:
		c.run.told = true
		c.do(Told{Result: Proved, Message: plan.Summary()})
	}

	c.close(closed(plan))
}

// again plans again because the plan is outdated. Where some pod gets a node while any plan is
// made, none that is newer can be had: then pods that get a node no longer count, and the arrival
// shows whether the proof still held. If plans are outdated for other reasons even so, the run
// ends.
//
//	plans 1 to 5 in a row     any pod that gets a node of the successor outdates them
//	plans 6 to 15             only a change of the victim, or of the node itself, does
//	after the 15th            the run ends
func (c *Core) again() {
	if c.run.stale++; c.run.stale >= mostOutdated {
		c.finish(fmt.Sprintf("%d plans in a row were outdated before their first move could be made", c.run.stale))
		return
	}
	c.later(firstPause)
}

// followed counts outdated plans anew, since one could be followed. Pods that get a node count
// again once a plan was made during which the successor's node got none.
func (c *Core) followed(m *rebalance.Move) {
	if !c.proof.busy || !c.proof.disturbed(m) {
		c.run.stale = 0
	} else {
		c.run.stale = mostStale
	}
}

// places reports whether the scheduler is about to place pending pods. If several nodes are as
// good, it chooses, and moves are proved after that. It says so for placesFor at the most: pods
// that the scheduler could place but does not, such as those of another scheduler, must not hold up
// moves forever.
func (c *Core) places(plan *rebalance.Plan) bool {
	waits := slices.ContainsFunc(plan.Arrivals, func(a rebalance.Arrival) bool { return a.After == 0 })
	switch {
	case !waits:
		c.run.placing = time.Time{}
	case c.run.placing.IsZero():
		c.run.placing = c.now
	}
	return waits && c.now.Sub(c.run.placing) < placesFor
}

// lags reports whether a pod was skipped only because of a status that the last move may have made
// stale. Both pass by themselves: a rollout is done, a budget's controller counts again.
func lags(plan *rebalance.Plan) bool {
	for i := range plan.Stays {
		if code := plan.Stays[i].Code; code == rebalance.OwnerBusy || code == rebalance.BudgetSpent {
			return true
		}
	}
	return false
}
