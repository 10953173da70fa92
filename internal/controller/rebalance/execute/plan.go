// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// ask requests a plan for the current state.
//
// The state excludes Berth's taints on nodes that still hold pods (see [cluster.opened]): a plan
// closes nodes itself, and lists the closed nodes for each of its moves.
func (c *Core) ask() {
	if c.stopping {
		c.finish(interrupted)
		return
	}
	c.enter(planning)
	// Changes from now until the plan arrives may outdate it.
	c.proof.restart(c.run.stale >= mostStale)
	resting := map[string]time.Time{}
	for workload, rest := range c.run.resting {
		resting[workload] = rest.Until.Time
	}
	c.addAction(MakePlan{
		State:   &rebalance.State{AsOf: c.wall(), World: c.cluster.opened()},
		Options: rebalance.Options{Surge: c.options.Surge, Resting: resting, Arrived: maps.Clone(c.run.arrived), Spent: c.run.spent},
	})
}

// later replans after a pause.
func (c *Core) later(pause time.Duration) {
	c.enter(pausing)
	c.at = c.now.Add(pause)
}

// planned handles a plan. The plan may be outdated already, because the cluster may have changed
// while it was computed. planned ignores plans that arrive in another phase.
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
	// The plan assumes a placement for pending pods that the scheduler is about to place. A later
	// plan is based on the scheduler's actual decision.
	case len(plan.Moves) > 0 && c.places(plan):
		c.later(firstPause)
		return
	// The pause is 2 s: statuses are updated within seconds, and each check costs a plan.
	case len(plan.Moves) == 0 && (lags(plan) || c.empties()) && c.now.Before(c.run.settling):
		c.later(2 * time.Second)
		return
	case !c.run.reported:
		c.run.reported = true
		c.addAction(MoveProgress{Result: Proved, Message: plan.Summary()})
	}

	c.close(closed(plan))
}

// again replans because the plan is outdated. If pods are scheduled during every plan, a plan is
// always slightly outdated. Newly scheduled pods are then ignored, and the arrival shows whether
// the proof still held. If plans still become outdated for other reasons, the run ends.
//
//	plans 1 to 5 in a row     any pod scheduled to the successor's node outdates them
//	plans 6 to 15             only a change of the victim or of the node itself outdates them
//	after the 15th            the run ends
func (c *Core) again() {
	if c.run.stale++; c.run.stale >= mostOutdated {
		c.finish(fmt.Sprintf("%d plans in a row were outdated before their first move could be made", c.run.stale))
		return
	}
	c.later(firstPause)
}

// followed resets the count of outdated plans when a plan is used. If newly scheduled pods were
// ignored and the successor's node got some, they stay ignored for the next plan.
func (c *Core) followed(m *rebalance.Move) {
	if !c.proof.busy || !c.proof.disturbed(m) {
		c.run.stale = 0
	} else {
		c.run.stale = mostStale
	}
}

// places reports whether the scheduler is about to place pending pods. Its choice among equally
// good nodes is unpredictable, so moves are proved afterwards. places returns true for at most
// placesFor: pods not placed despite available room, such as another scheduler's, must not block
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
// stale. Both conditions clear by themselves: the rollout completes, or the budget's controller
// recounts.
func lags(plan *rebalance.Plan) bool {
	return slices.ContainsFunc(plan.Stays, func(s rebalance.Stay) bool {
		return s.Code == rebalance.OwnerBusy || s.Code == rebalance.BudgetSpent
	})
}

// empties reports whether terminating pods still occupy room that further moves may need. The
// successor of an unready pod often arrives before its victim has left.
func (c *Core) empties() bool {
	return rules.Any(world.All[*v1.Pod](c.cluster.World), func(p *v1.Pod) bool {
		return p.DeletionTimestamp != nil && p.Spec.NodeName != ""
	})
}
