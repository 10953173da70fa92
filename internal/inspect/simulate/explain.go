package simulate

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// explainPod asks every plugin about every node, if that is wanted, and returns nil
// otherwise. It visits every node for every pod, so it costs far more than the decision.
func (s *scheduler) explainPod(schedulerName string, p *cluster.Pod) []Node {
	if !s.explains {
		return nil
	}
	return Verdicts(s.core.Decider(schedulerName).Plain().Evaluate(p))
}

// Verdicts returns an evaluation's verdicts on the nodes, sorted by name. Total is set for
// feasible nodes only, 0 included.
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
