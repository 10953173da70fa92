// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Decider is the fast implementation that finds nodes for the pods of one profile. It follows the
// cluster's log. Like the cluster, it is owned by one goroutine.
//
// It holds no data about nodes: the index follows the cluster, the planner calls the plugins, and
// the cache keeps rankings and bases. The Decider only selects a data structure for each pod and
// breaks ties.
//
// Call Diagnose and Preempt only right after a Decide that found no node, because they read the
// state updated by that Decide.
type Decider struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	limits  *effort.Limits
	meter   *effort.Meter
	tie     *tie
	// Prefer, if set, names the node to choose for a pod among several best nodes. If it is unset,
	// or if the named node is not among the best, the choice is random.
	Prefer func(*cluster.Pod) string

	ix      *index
	planner *planner
	cache   *cache
	plain   *Plain // evaluates pods with requirements that groups cannot express
	survey  survey // reused by every decision from a base

	attempted []plugins.Attempted // filters that implement plugins.Attempted
}

// New returns a decider for pods of a profile in a cluster. Ties are broken at random, reproducibly
// for a given seed.
func New(c *cluster.Cluster, profile *plugins.Profile, seed uint64) *Decider {
	limits, meter := effort.DefaultLimits(), &effort.Meter{}
	ix := newIndex(c, profile, &limits, meter)
	planner := newPlanner(ix, profile)
	d := &Decider{
		c: c, profile: profile, limits: &limits, meter: meter, tie: newTie(seed),
		ix: ix, planner: planner, cache: newCache(ix, planner), plain: &Plain{c, profile, &limits, meter},
	}

	for _, f := range profile.Filters {
		if f, is := f.(plugins.Attempted); is {
			d.attempted = append(d.attempted, f)
		}
	}
	return d
}

// KeepFor keeps rankings and bases until they have been unused for the given number of decisions.
// It is meant for callers that repeatedly decide all classes of a cluster in turn, such as a
// planner of moves. The bound on the memory of all rankings still applies. Call KeepFor before the
// first decision.
func (d *Decider) KeepFor(decisions uint64) {
	d.cache.idle = decisions
}

// DropUnused drops the data of large classes unused since its last call. It does not affect
// decisions.
func (d *Decider) DropUnused() { d.cache.dropUnused() }

// Plain returns the plain evaluator for the same pods. Its work is included in the decider's Work.
func (d *Decider) Plain() *Plain { return d.plain }

// Work returns the approximate cost of all decisions, searches for victims and diagnoses so far, in
// judgements of a node. It depends only on the decider's calls and the state of its cluster.
func (d *Decider) Work() int { return d.meter.Work + d.c.Looks }

func (d *Decider) decisionOf(of choice) Decision {
	if of.node == none {
		return Decision{}
	}
	return Decision{Node: d.c.Nodes[of.node], Total: of.total, Feasible: of.feasible}
}
