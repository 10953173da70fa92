package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Decider finds nodes for the pods of one profile, fast. It follows its cluster by the log. Like
// the cluster, it is owned by one goroutine.
//
// It owns no data about nodes: the index follows the cluster, the planner asks the plugins, the
// cache keeps rankings and bases. The Decider only chooses which of them answers, and breaks ties.
//
// Call Diagnose and Preempt right after Decide has found no node: they read what it brought up to
// date.
type Decider struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	limits  *effort.Limits
	meter   *effort.Meter
	tie     *tie
	// Prefer, if set, names the node that a pod is to get if it is among several best ones; without
	// it, and if it is not among them, chance decides.
	Prefer func(*cluster.Pod) string

	ix      *index
	planner *planner
	cache   *cache
	plain   *Plain // for what groups of nodes cannot express
	survey  survey // reused by every decision from a base

	attempted []plugins.Attempted // the filters that are one
}

// New returns a decider for pods of a profile in a cluster. Ties are broken at random, the same way
// for the same seed.
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

// KeepFor has rankings kept that were not used for so many decisions, and bases with them; it is
// for one who decides the classes of a cluster in turn again and again, as a planner of moves does.
// It bounds no memory: the rankings together are bounded as ever. It is called before the first
// decision.
func (d *Decider) KeepFor(decisions uint64) {
	d.cache.idle = decisions
}

// DropUnused forgets what was made for large classes and not used since its last call. Decisions
// are the same without it.
func (d *Decider) DropUnused() { d.cache.dropUnused() }

// Plain returns the plain way to decide the same pods. Its work counts as the decider's.
func (d *Decider) Plain() *Plain { return d.plain }

// Work is about what all decisions, searches for victims and diagnoses have cost so far, in
// judgements of a node. It depends on nothing but what the decider was asked and shown.
func (d *Decider) Work() int { return d.meter.Work + d.c.Looks }

func (d *Decider) decisionOf(of choice) Decision {
	if of.node == none {
		return Decision{}
	}
	return Decision{Node: d.c.Nodes[of.node], Total: of.total, Feasible: of.feasible}
}
