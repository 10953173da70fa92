// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Plain is the plain evaluator: it runs every plugin on every node, and keeps no state. It is
// written for readability and is the reference for the fast path, which must return the same
// results.
type Plain struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	limits  *effort.Limits
	meter   *effort.Meter // the Decider's meter, or a separate meter that is never read
}

// NewPlain returns the plain evaluator for pods of a profile in a cluster.
func NewPlain(c *cluster.Cluster, profile *plugins.Profile) *Plain {
	limits := effort.DefaultLimits()
	return &Plain{c: c, profile: profile, limits: &limits, meter: &effort.Meter{}}
}

// Evaluate returns the verdict on every node: the rejection, or each plugin's score.
func (pl *Plain) Evaluate(p *cluster.Pod) *Evaluation {
	pl.beginAttempt()
	return pl.evaluateInAttempt(p)
}

// Rejections returns, for each of the given nodes, the reasons why it cannot take the pod, joined
// by commas, or "" if it can take the pod.
func (pl *Plain) Rejections(p *cluster.Pod, nodes []*cluster.Node) []string {
	pl.beginAttempt()
	j := prepareFilters(pl.c, pl.profile, p)
	list := make([]string, len(nodes))
	for i, n := range nodes {
		rejection := j.all
		switch {
		case j.err != nil:
			list[i] = j.err.Error()
			continue
		case rejection == nil:
			_, rejection = j.judgeNode(n)
		}
		if rejection != nil && rejection.Err != nil {
			list[i] = rejection.Err.Error()
		} else if rejection != nil {
			list[i] = cmp.Or(strings.Join(rejection.Reasons, ", "), rejection.Code)
		}
	}

	return list
}

// Fits reports whether a node can take a pending pod. Filters run on this node only.
func (pl *Plain) Fits(p *cluster.Pod, n *cluster.Node) bool {
	pl.meter.Work += effort.CostOfDecision * effort.CostOfPod(p)
	_, rejection := fitsNow(pl.c, pl.profile, p, n)
	return rejection == nil
}

// beginAttempt notifies the filters of a new attempt.
func (pl *Plain) beginAttempt() {
	for _, f := range pl.profile.Filters {
		if f, is := f.(plugins.Attempted); is {
			f.BeginAttempt()
		}
	}
}

// evaluateInAttempt is like Evaluate, but does not begin a new attempt.
func (pl *Plain) evaluateInAttempt(p *cluster.Pod) *Evaluation {
	pl.meter.Work += effort.CostOfPreparing(pl.c, p) + pl.c.Len()
	e := &Evaluation{Nodes: pl.allNodes()}
	j := prepareFilters(pl.c, pl.profile, p)
	switch {
	case j.err != nil:
		return &Evaluation{Err: j.err}
	case j.all != nil:
		e.Rejector, e.Rejection = j.rejector, j.all
		for i := range e.Nodes {
			e.Nodes[i].Plugin, e.Nodes[i].Rejection = j.rejector, j.all
		}
		return e
	}

	pl.meter.Work += effort.CostOfPod(p) * e.judgeNodes(j)
	if e.Err == nil && e.Feasible > 1 {
		e.scoreNodes(pl.c, pl.profile, p)
	}
	return e
}

// decide finds the best node as part of an attempt. If plugins restrict the pod to nodes by name,
// it only examines these nodes.
func (pl *Plain) decide(p *cluster.Pod, t *tie) Decision {
	j := prepareFilters(pl.c, pl.profile, p)
	j.left = effort.NewBudget(pl.limits, pl.c)
	if j.err != nil || j.all != nil {
		return Decision{Err: j.err}
	}

	e := &Evaluation{}
	if j.only == nil {
		pl.meter.Work += effort.CostOfPreparing(pl.c, p) + pl.c.Len()
		e.Nodes = pl.allNodes()
	}
	for name := range j.only {
		if n := pl.c.Node(name); n != nil {
			e.Nodes = append(e.Nodes, NodeVerdict{Node: n})
		}
	}
	slices.SortFunc(e.Nodes, func(a, b NodeVerdict) int { return int(a.Node.Index - b.Node.Index) })

	pl.meter.Work += effort.CostOfPod(p) * e.judgeNodes(j)
	if e.Err == nil && e.Feasible > 1 {
		e.scoreNodes(pl.c, pl.profile, p)
	}
	return e.decisionBy(t)
}

// allNodes returns unjudged entries for the nodes of the cluster, by index.
func (pl *Plain) allNodes() (all []NodeVerdict) {
	for _, n := range pl.c.Nodes {
		if n != nil {
			all = append(all, NodeVerdict{Node: n})
		}
	}
	return all
}

// judgeNodes sets the rejections and counts the feasible nodes. Nodes with nominated pods are
// judged sequentially, because judging them changes the cluster temporarily. It returns the number
// of nodes that are not rejected by static filters. For a pod confined to a topology domain, these
// are few.
func (e *Evaluation) judgeNodes(j *judges) (costly int) {
	askAll(len(e.Nodes), j.again, func(i int) {
		if v := &e.Nodes[i]; len(v.Node.Nominated) == 0 {
			v.Plugin, v.Rejection = j.judgeNode(v.Node)
		}
	})

	for i := range e.Nodes {
		v := &e.Nodes[i]
		if len(v.Node.Nominated) > 0 {
			v.Plugin, v.Rejection = j.judgeWithNominated(v.Node)
		}
		if !slices.Contains(j.names[:j.static], v.Plugin) {
			costly++
		}
		switch {
		case v.Rejection == nil:
			e.Feasible++
		case v.Rejection.Err != nil:
			err := v.Rejection.Err
			if v.Plugin != "" {
				err = &FilterError{v.Plugin, err}
			}
			*e = Evaluation{Err: err}
			return costly
		}
	}

	e.askExtenders(j)
	return costly
}

// scoreNodes sets the scores of the feasible nodes.
func (e *Evaluation) scoreNodes(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) {
	feasible := make([]*cluster.Node, 0, e.Feasible)
	verdicts := make([]*NodeVerdict, 0, e.Feasible)
	for i := range e.Nodes {
		if v := &e.Nodes[i]; v.Rejection == nil {
			feasible, verdicts = append(feasible, v.Node), append(verdicts, v)
		}
	}

	for _, s := range profile.Scorers {
		scores, fine, err := ScoresOf(s.Scorer, c, p, feasible)
		if err != nil {
			*e = Evaluation{Err: err}
			return
		}
		if scores == nil {
			continue
		}
		for i, v := range verdicts {
			v.Scores = append(v.Scores, Score{s.Scorer.Name(), scores[i] * s.Weight})
			v.Total += scores[i] * s.Weight
			if fine != nil {
				v.Fine += fine[i] * s.Weight
			}
		}
	}

	if err := addExtenderScores(c, profile, p, feasible, verdicts); err != nil {
		*e = Evaluation{Err: err}
	}
}
