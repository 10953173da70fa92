// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"slices"

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

// Decide finds the best node for a pending pod. It does not place the pod.
func (d *Decider) Decide(p *cluster.Pod) Decision {
	d.ix.followLog() // a new ranking requires an up-to-date index
	d.meter.Clock++
	d.cache.dropIdle()
	if d.meter.Clock%often == 0 {
		d.cache.dropAllIdle()
	}
	d.meter.Work += effort.CostOfDecision
	d.tie.preferred = d.preferredNode(p)
	if d.ix.selectsTooMuch(p) {
		return Decision{Err: errTermsTooLong}
	}
	first := d.profile.Targets.Wanted(d.c, p)
	if len(first) == 0 {
		if decision, done := d.tryBase(p); done {
			return decision
		}
	}
	for _, f := range d.attempted {
		f.BeginAttempt()
	}
	r, pl := d.cache.rankingFor(p)
	if nominated := d.c.Node(p.Nominated); nominated != nil {
		first = slices.Insert(first, 0, nominated)
	}
	switch n, err := d.firstOf(first, p, r, pl); {
	case err != nil:
		return Decision{Err: err}
	case n != nil:
		return Decision{Node: n, Feasible: 1}
	}

	if pl.way != ranked {
		return d.plain.decide(p, d.tie)
	}
	questions, ok := pl.questionsFor(d.c, p)
	if !ok {
		return d.plain.decide(p, d.tie)
	}
	held, failed := r.withholdNodes(p, questions, false)
	defer func() {
		for _, node := range held {
			r.regroupNode(node)
		}
	}()
	if failed {
		return d.plain.decide(p, d.tie) // Plain finds the error to report: the first one
	}
	if len(pl.asked)+len(pl.askedScores) > 0 {
		return d.chooseAmong(r, p, pl, questions)
	}
	return d.decisionOf(r.chooseNode(d.tie))
}

// firstOf returns the first of the nodes that can take the pod now, or nil. These are the pod's
// nominated node and its targets; no other node is examined if one of them fits. Like upstream, it
// ignores node names returned by PreFilter plugins.
func (d *Decider) firstOf(nodes []*cluster.Node, p *cluster.Pod, r *ranking, pl *plan) (*cluster.Node, error) {
	for _, n := range nodes {
		if pl.way == ranked {
			if questions, ok := pl.questionsFor(d.c, p); ok {
				t := &hypothesis{r: r, p: p, questions: questions}
				t.beginNode(n)
				if _, rejection := t.findRejection(); rejection == nil {
					return n, nil
				}
				continue
			}
		}

		j := prepareFilters(d.c, d.profile, p)
		if j.err != nil || j.all != nil {
			return nil, nil
		}
		j.anywhere = true
		if _, rejection := j.judgeWithNominated(n); rejection != nil {
			continue
		}
		rejected, err := extenderRejections(j, []*cluster.Node{n})
		if aside := (*plugins.PendingQuery)(nil); errors.As(err, &aside) {
			return nil, err
		}
		if err == nil && rejected[n] == nil {
			return n, nil
		}
	}
	return nil, nil
}

// tryTarget decides a pod that names the only possible node, like the pods of DaemonSets, by
// judging only that node. Pods with rules about other pods, and pods selected by such rules, take
// the general path.
func (d *Decider) tryTarget(p *cluster.Pod) (decision Decision, done bool) {
	class := p.Class
	if !class.Simple || len(class.RequiredAffinity)+len(class.RequiredAntiAffinity) > 0 || class.TermError != nil {
		return Decision{}, false
	}

	sk := d.planner.skeletonFor(p)
	if sk == nil || !sk.selects || slices.ContainsFunc(sk.ask, func(plugin any) bool { return appliesTo(plugin, d.c, p) }) {
		return Decision{}, false
	}

	if sk.hard != nil {
		if hard, err := sk.hard.Hard(d.c, p); err != nil || len(hard) > 0 {
			return Decision{}, false
		}
	}

	if d.ix.mayBeRepelled(class) {
		return Decision{}, false
	}
	n := d.c.Node(class.Target())
	if n == nil {
		return Decision{}, true
	}
	if len(n.Nominated) > 0 {
		return Decision{}, false
	}

	for _, judges := range [2][]namedJudge{sk.early, sk.late} {
		for i := range judges {
			if rejection := judges[i].judge(n); rejection != nil {
				return Decision{}, rejection.Err == nil
			}
		}
	}

	room := sk.room
	if class.Requests.MilliCPU != room.cpu || class.Requests.Memory != room.memory {
		room = room.forClass(class)
	}

	if !room.fits(&d.c.Rooms[n.Index]) {
		return Decision{}, true
	}
	return Decision{Node: n, Feasible: 1}, true
}
