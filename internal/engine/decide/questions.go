// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"math"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// appliesTo reports whether a filter or scorer can have any effect on the pod.
func appliesTo(plugin any, c *cluster.Cluster, p *cluster.Pod) bool {
	s, ok := plugin.(plugins.Selective)
	return !ok || s.Applies(c, p)
}

// questions holds the judges of a plan's asked filters, for one pod.
type questions struct {
	judges []judge       // by plan.asked; an element is nil if the filter passes all nodes; the list is nil without asked filters
	surely []surely      // see plugins.Judge
	again  []func() bool // see plugins.Judge
	// releasing is set if the removal of pods also releases claims; see plugins.Judge.
	releasing func(n *cluster.Node) bool
}

type surely = func(n *cluster.Node) bool

// questionsFor prepares the judges of the asked filters. ok is false if any filter fails, rejects
// the pod on all nodes, or restricts the pod to nodes by name.
func (pl *plan) questionsFor(c *cluster.Cluster, p *cluster.Pod) (q questions, ok bool) {
	for _, a := range pl.asked {
		judge := a.filter.Filter(c, p)
		if judge.Again != nil {
			q.again = append(q.again, judge.Again)
		}
		if judge.Err != nil || judge.All != nil || judge.Only != nil {
			return questions{}, false
		}
		if judge.Releasing != nil {
			q.releasing = judge.Releasing
		}
		q.judges, q.surely = append(q.judges, judge.Node), append(q.surely, judge.Surely)
	}
	return q, true
}

// askBefore runs the questions that precede a step of the plan on a node, and returns the first
// rejection.
func (q questions) askBefore(pl *plan, before int, n *cluster.Node) *plugins.Rejection {
	for i, judge := range q.judges {
		if judge != nil && pl.asked[i].step < before {
			if rejection := judge(n); rejection != nil {
				return rejection
			}
		}
	}
	return nil
}

// askNodes runs the questions on the nodes with room, in parallel, and returns the nodes that
// remain feasible. It also runs the questions on infeasible nodes if a question precedes the filter
// that rejects them, because an error of that question makes the attempt fail.
func (r *ranking) askNodes(q questions) (left []int32, failed bool) {
	nodes := r.space.asked[:0]
	for i, bucket := range r.bucket {
		if bucket >= 0 || bucket > ^settled && r.plan.asksEarly {
			nodes = append(nodes, int32(i))
		}
	}

	r.space.asked = nodes
	r.ix.meter.Work += effort.CostOfPod(r.plan.example) * len(nodes)
	before := make([]int, len(r.groups))
	for i, g := range r.groups {
		if before[i] = len(r.plan.steps); g.ok > 0 && !g.feasible || g.ok == 0 && r.plan.asksEarly {
			if plugin, rejection := r.judgeGroup(g); rejection != nil {
				before[i] = r.plan.stepOf(plugin)
			}
		}
	}

	verdicts := make([]verdict, len(nodes))
	askAll(len(nodes), q.again, func(i int) {
		group, bucket := r.groupAt(nodes[i]), r.bucket[nodes[i]]
		step := before[group]
		if bucket < 0 {
			step = min(step, r.plan.stepOf(r.reasons.list[reasonIn(bucket)].plugin))
		}
		switch rejection := q.askBefore(r.plan, step, r.ix.c.Nodes[nodes[i]]); {
		case rejection != nil && rejection.Err != nil:
			verdicts[i] = fails
		case rejection == nil && bucket >= 0 && r.groups[group].feasible:
			verdicts[i] = passes
		default:
			verdicts[i] = rejects
		}
	})

	left = nodes[:0]
	for i, v := range verdicts {
		switch v {
		case fails:
			return nil, true
		case passes:
			left = append(left, nodes[i])
		}
	}

	return left, false
}

type verdict uint8

const (
	rejects verdict = iota
	passes
	fails
)

// scoreNodes computes the scores that the ranking would assign if only these nodes were feasible.
func (r *ranking) scoreNodes(nodes []int32) []int64 {
	ok := make([]int32, len(r.groups))
	for i, g := range r.groups {
		ok[i], g.ok = g.ok, 0
	}

	for _, node := range nodes {
		r.groups[r.groupAt(node)].ok++
	}
	r.weighSpread(r.weighConstraints(nodes))
	b := r.findBounds()
	fixed := make([]int64, len(r.groups))

	for i, g := range r.groups {
		if g.ok > 0 {
			fixed[i] = r.fixedScore(g, &b)
		}
		g.ok = ok[i]
	}

	totals := make([]int64, len(nodes))
	for i, node := range nodes {
		totals[i] = fixed[r.groupAt(node)] + int64(r.bucket[node])
	}
	return totals
}

// withholdNodes removes from the ranking the nodes that cannot take the pod in addition to the pods
// nominated to them, and returns these nodes. It rejudges infeasible nodes only if all is set,
// since nominated pods may add reasons, or if a question precedes the filter that rejects such
// nodes, since the question may fail with the nominated pods. If the buckets account for nominated
// pods, only the pod's own nominated node can change, since the pod does not compete with itself.
// failed is set if a plugin failed.
func (r *ranking) withholdNodes(p *cluster.Pod, q questions, all bool) (held []int32, failed bool) {
	c := r.ix.c
	if c.Nominations() == 0 {
		return nil, false
	}
	if r.plan.guestsInRoom() {
		own := c.Nominated(p.UID())
		if own == nil {
			return nil, false
		}
		n := c.Node(own.Nominated)
		if n == nil {
			return nil, false
		}
		if before := r.bucket[n.Index]; before > ^settled {
			if now := r.roomBut(n.Index, p.UID()); now != before {
				r.moveNode(n.Index, now)
				held = append(held, n.Index)
			}
		}
		return held, false
	}

	t := &hypothesis{r: r, p: p, questions: q}
	for _, n := range c.NominatedNodes() {
		if b := r.bucket[n.Index]; b < 0 && !all && !r.plan.asksEarly || b <= ^settled || len(nominatedBefore(n, p)) == 0 {
			continue
		}
		t.beginNode(n)
		if plugin, rejection := t.findRejection(); rejection != nil {
			r.moveNode(n.Index, ^r.reasonOf(plugin, rejection))
			held = append(held, n.Index)
			failed = failed || rejection.Err != nil
		}
	}

	return held, failed
}

// chooseAmong finds the best of the nodes feasible by both the ranking and the questions.
func (d *Decider) chooseAmong(r *ranking, p *cluster.Pod, pl *plan, q questions) Decision {
	r.markFeasible()
	left, failed := r.askNodes(q)
	if failed {
		return d.plain.decide(p, d.tie) // Plain finds the error to report: the first one
	}
	if len(left) == 0 {
		return Decision{}
	}
	if len(left) == 1 {
		return Decision{Node: d.c.Nodes[left[0]], Feasible: 1}
	}
	totals, fines := r.scoreNodes(left), make([]int64, len(left))
	for i, node := range left {
		fines[i] = r.fineOf(node)
	}

	if len(pl.askedScores) > 0 {
		if err := d.addScores(pl.askedScores, p, left, totals, fines); err != nil {
			return Decision{Err: err}
		}
	}
	best, total, fine, ties := none, int64(math.MinInt64), int64(0), 0
	for i, node := range left {
		switch order := cmp.Or(cmp.Compare(totals[i], total), cmp.Compare(fines[i], fine)); {
		case order > 0 || best == none:
			best, total, fine, ties = node, totals[i], fines[i], 1
		case order == 0:
			if ties++; (d.tie.draw(ties) == 0 || node == d.tie.preferred) && best != d.tie.preferred {
				best = node
			}
		}
	}
	return Decision{Node: d.c.Nodes[best], Total: total, Feasible: len(left)}
}

// addScores adds the scores of scorers that groups cannot express.
func (d *Decider) addScores(scorers []plugins.Weighted, p *cluster.Pod, nodes []int32, totals, fines []int64) error {
	feasible := rules.Mapped(nodes, func(node int32) *cluster.Node { return d.c.Nodes[node] })
	for _, s := range scorers {
		scores, fine, err := ScoresOf(s.Scorer, d.c, p, feasible)
		if err != nil {
			return err
		}
		for i, score := range scores {
			totals[i] += score * s.Weight
		}
		for i, score := range fine {
			fines[i] += score * s.Weight
		}
	}
	return nil
}
