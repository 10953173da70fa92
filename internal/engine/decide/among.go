// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"math"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

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
	feasible := make([]*cluster.Node, len(nodes))
	for i, node := range nodes {
		feasible[i] = d.c.Nodes[node]
	}
	for _, s := range scorers {
		scores, fine, err := scoresOf(s.Scorer, d.c, p, feasible)
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
