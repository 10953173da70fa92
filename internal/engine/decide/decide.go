// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

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
		return d.plain.decide(p, d.tie) // Plain finds the error to report: the first one
	}
	if len(pl.asked)+len(pl.askedScores) > 0 {
		return d.chooseAmong(r, p, pl, questions)
	}
	return d.decisionOf(r.chooseNode(d.tie))
}

// tryNominated returns the pod's nominated node if that node can take the pod now; no other node is
// examined in that case. Like upstream, it ignores node names returned by PreFilter plugins.
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
	if aside := (*plugins.PendingQuery)(nil); errors.As(err, &aside) {
		return nil, err
	}
	if err != nil || rejected[n] != nil {
		return nil, nil
	}
	return n, nil
}
