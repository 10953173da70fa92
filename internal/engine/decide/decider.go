package decide

import (
	"errors"

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

// Decision is the node for a pod, if there is one.
type Decision struct {
	// Node is nil if no node can take the pod; Diagnose says why.
	Node *cluster.Node
	// Total is the node's score; 0 if it was the only feasible node or the nominated one.
	Total int64
	// Feasible counts the nodes that can take the pod, among those that were looked at.
	Feasible int
	// Err is why the pod could not be judged.
	Err error
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

// Decide finds the best node for a pending pod. It does not place the pod.
func (d *Decider) Decide(p *cluster.Pod) Decision {
	d.ix.followLog() // what a ranking is made from must be as new as the ranking
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
	if decision, done := d.tryBase(p); done {
		return decision
	}
	for _, f := range d.attempted {
		f.BeginAttempt()
	}
	r, pl := d.cache.rankingFor(p)
	switch n, err := d.tryNominated(p, r, pl); {
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
		return d.plain.decide(p, d.tie) // which finds the error to report: the first
	}
	if len(pl.asked)+len(pl.askedScores) > 0 {
		return d.chooseAmong(r, p, pl, questions)
	}
	return d.decisionOf(r.chooseNode(d.tie))
}

func (d *Decider) decisionOf(of choice) Decision {
	if of.node == none {
		return Decision{}
	}
	return Decision{Node: d.c.Nodes[of.node], Total: of.total, Feasible: of.feasible}
}

// Plain returns the plain way to decide the same pods. Its work counts as the decider's.
func (d *Decider) Plain() *Plain { return d.plain }

// tryNominated returns the node that the pod was nominated to if it can take the pod now; no other
// node is looked at then. As upstream, the nodes that PreFilter plugins name are ignored here.
func (d *Decider) tryNominated(p *cluster.Pod, r *ranking, pl *plan) (*cluster.Node, error) {
	n := d.c.Node(p.Nominated)
	if n == nil {
		return nil, nil
	}

	if pl.way == ranked {
		if questions, ok := pl.questionsFor(d.c, p); ok {
			t := &hypothesis{r: r, p: p, questions: questions}
			t.beginNode(n)
			if _, rejection := t.findRejection(); rejection != nil {
				return nil, nil
			}
			return n, nil
		}
	}

	j := prepareFilters(d.c, d.profile, p)
	if j.err != nil || j.all != nil {
		return nil, nil
	}

	j.anywhere = true
	if _, rejection := j.judgeWithNominated(n); rejection != nil {
		return nil, nil
	}

	rejected, err := extenderRejections(j, []*cluster.Node{n})
	if aside := (*plugins.Aside)(nil); errors.As(err, &aside) {
		return nil, err
	}
	if err != nil || rejected[n] != nil {
		return nil, nil
	}
	return n, nil
}

// Work is about what all decisions, searches for victims and diagnoses have cost so far, in
// judgements of a node. It depends on nothing but what the decider was asked and shown.
func (d *Decider) Work() int { return d.meter.Work + d.c.Looks }
