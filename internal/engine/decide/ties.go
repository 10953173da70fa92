// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math/rand/v2"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Best returns all nodes that Decide may choose for a pending pod without a nominated node, sorted
// by index. The result is empty if no node can take the pod.
func (d *Decider) Best(p *cluster.Pod) ([]*cluster.Node, error) {
	d.ix.followLog()
	d.meter.Work += effort.CostOfDecision
	if d.ix.selectsTooMuch(p) {
		return nil, errTermsTooLong
	}

	for _, f := range d.attempted {
		f.BeginAttempt()
	}
	r, pl := d.cache.rankingFor(p)
	if n, err := d.firstOf(d.profile.Targets.Wanted(d.c, p), p, r, pl); n != nil || err != nil {
		return []*cluster.Node{n}, err
	}
	if pl.way != ranked || len(pl.asked)+len(pl.askedScores) > 0 {
		return d.tiesPlainly(p)
	}

	held, failed := r.withholdNodes(p, questions{}, false)
	defer func() {
		for _, node := range held {
			r.regroupNode(node)
		}
	}()

	if failed {
		return d.tiesPlainly(p)
	}
	return rules.Mapped(r.listTies(), func(node int32) *cluster.Node { return d.c.Nodes[node] }), nil
}

// tiesPlainly is the variant of Best for pods that cannot be decided from a ranking.
func (d *Decider) tiesPlainly(p *cluster.Pod) ([]*cluster.Node, error) {
	e := d.plain.evaluateInAttempt(p)
	return rules.Mapped(e.Best(), func(v *NodeVerdict) *cluster.Node { return v.Node }), e.Err
}

// preferredNode returns the node named by Prefer for a pod, or none.
func (d *Decider) preferredNode(p *cluster.Pod) int32 {
	if d.Prefer != nil {
		if n := d.c.Node(d.Prefer(p)); n != nil {
			return n.Index
		}
	}
	return none
}

// tie decides among equally good nodes. It holds the only source of randomness of a decider.
//
// To prefer some of these nodes by a rule, implement fine scores in a plugin
// ([plugins.Scoring].Exact). Rankings and bases compare the fine scores of nodes with the same
// total before drawing.
//
// Draws are part of the output: replays and stories pin each draw. The number and order of a
// decision's draws are therefore part of its contract.
type tie struct {
	rng *rand.Rand
	// preferred is the node to choose for the pod being decided if it is among the best; none: the
	// choice is random.
	preferred int32
}

func newTie(seed uint64) *tie { return &tie{rand.New(rand.NewPCG(seed, 0)), none} }

// draw returns a number below n, each with the same probability.
func (t *tie) draw(n int) int { return t.rng.IntN(n) }
