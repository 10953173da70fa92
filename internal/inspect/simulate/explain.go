// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// explainPod runs every plugin on every node if an explanation is wanted, and returns nil
// otherwise. Visiting every node for every pod costs far more than the decision.
func (s *scheduler) explainPod(schedulerName string, p *cluster.Pod) []Node {
	if !s.explains {
		return nil
	}
	return Verdicts(s.core.Decider(schedulerName).Plain().Evaluate(p))
}

// Verdicts returns an evaluation's verdicts on the nodes, sorted by name. Total is set, possibly to
// 0, only for feasible nodes.
func Verdicts(e *decide.Evaluation) []Node {
	nodes := make([]Node, 0, len(e.Nodes))
	for i := range e.Nodes {
		v := &e.Nodes[i]
		n := Node{Name: v.Node.Name, Feasible: v.Rejection == nil}
		if r := v.Rejection; r != nil {
			n.Plugin, n.Code, n.Reasons = v.Plugin, r.Code, r.Reasons
		} else {
			total := v.Total
			n.Total = &total
		}
		for _, score := range v.Scores {
			if n.Scores == nil {
				n.Scores = make(map[string]int64, len(v.Scores))
			}
			n.Scores[score.Plugin] = score.Score
		}
		nodes = append(nodes, n)
	}

	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}
