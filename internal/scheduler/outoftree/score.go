// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// preScorer precedes all scorers of a profile, and calls the plugins at PreScore in their order:
// one may read data kept by another. Package decide calls it as the first scorer, with the feasible
// nodes, and needs no support for PreScore.
type preScorer struct{ f *framework }

// Name returns the name by which package decide recognizes the preScorer. Package decide does not
// add this name to errors, which already name their plugin.
func (preScorer) Name() string { return plugins.PreScorers }

// Score calls the plugins at PreScore, and scores nothing. An error fails the attempt.
func (s preScorer) Score(c *cluster.Cluster, waiting *cluster.Pod, feasible []*cluster.Node) plugins.Scoring {
	y := s.f.sessionOf(c, waiting)
	infos := y.nodeInfos(feasible)
	var status *fwk.Status
	y.whileOpen(func() { status = s.f.preScore(y.ctx, y.state, y.pod, infos) })
	return plugins.Scoring{Err: status.AsError()}
}

// scorer is a plugin at Score.
type scorer struct {
	f      *framework
	plugin fwk.ScorePlugin
}

// Name returns the plugin's own name, used to skip it.
func (s *scorer) Name() string { return s.plugin.Name() }

// Score implements plugins.Scorer. A plugin that skipped at PreScore scores nothing. Nodes are
// scored in the state of the snapshot, on several goroutines concurrently, and normalized when all
// have their score.
func (s *scorer) Score(c *cluster.Cluster, waiting *cluster.Pod, feasible []*cluster.Node) plugins.Scoring {
	y := s.f.sessionOf(c, waiting)
	if y.state.skipScore.Has(s.Name()) {
		return plugins.Scoring{}
	}
	return plugins.Scoring{
		Node: func(n *cluster.Node) (int64, error) {
			score, status := s.plugin.Score(y.ctx, y.state, y.pod, y.snapshot.infos[n.Index])
			if !status.IsSuccess() {
				return 0, statusError(status, "Score")
			}
			return score, nil
		},
		Finish: func(feasible []*cluster.Node, scores []int64) error {
			return s.normalizeScores(y.ctx, y.state, y.pod, feasible, scores)
		},
	}
}

// normalizeScores normalizes the scores in place and checks their bounds. Its messages are
// upstream's.
func (s *scorer) normalizeScores(ctx context.Context, state *State, pod *v1.Pod, feasible []*cluster.Node, scores []int64) error {
	if extensions := s.plugin.ScoreExtensions(); extensions != nil {
		list := make(fwk.NodeScoreList, len(feasible))
		for i, n := range feasible {
			list[i] = fwk.NodeScore{Name: n.Name, Score: scores[i]}
		}
		if status := extensions.NormalizeScore(ctx, state, pod, list); !status.IsSuccess() {
			return fmt.Errorf("running Normalize on Score plugins: plugin %q failed with: %w", s.Name(),
				statusError(status, "NormalizeScore"))
		}
		for i := range list {
			scores[i] = list[i].Score
		}
	}

	for _, score := range scores {
		if err := checkScore(s.Name(), score); err != nil {
			return fmt.Errorf("applying score defaultWeights on Score plugins: %w", err)
		}
	}
	return nil
}

// checkScore rejects a score outside of 0 to 100, like upstream.
func checkScore(plugin string, score int64) error {
	if score < fwk.MinScore || score > fwk.MaxScore {
		return fmt.Errorf("plugin %q returns an invalid score %v, it should in the range of [%v, %v] after normalizing",
			plugin, score, fwk.MinScore, fwk.MaxScore)
	}
	return nil
}
