// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// Filtering is one plugin's result for all nodes, independent of other plugins.
type Filtering struct {
	// All, if set, is the rejection of the pod before any node is evaluated.
	All *Verdict
	// Only, if not nil, is the set of nodes to evaluate.
	Only sets.Set[string]
	// Nodes holds the verdicts on the evaluated nodes; nil accepts the node.
	Nodes map[string]*Verdict
}

// Scoring holds one plugin's scores of some nodes, normalised and not yet weighted.
type Scoring struct {
	Failed bool
	Err    string
	// Skipped is set if the plugin has no scores for the pod.
	Skipped bool
	Scores  []int64
}

// filterByPlugin runs one plugin individually on every node. It also returns the cycle state, which
// is an input of scoreByPlugin.
func (u *upstream) filterByPlugin(ctx context.Context, name string, pod *v1.Pod) (Filtering, fwk.CycleState) {
	state := framework.NewCycleState()
	f := Filtering{Nodes: map[string]*Verdict{}}
	pod = podAhead(pod)
	plugin := u.plugins[name]
	if pre, ok := plugin.(fwk.PreFilterPlugin); ok {
		result, status := pre.PreFilter(ctx, state, pod, u.nodes)
		if status.IsSkip() {
			return f, state
		}
		if !status.IsSuccess() {
			f.All = verdictOf(name, status)
			return f, state
		}
		if !result.AllNodes() {
			f.Only = result.NodeNames
		}
	}

	filter, ok := plugin.(fwk.FilterPlugin)
	if !ok {
		return f, state
	}

	for _, node := range u.nodes {
		if f.Only == nil || f.Only.Has(node.Node().Name) {
			f.Nodes[node.Node().Name] = verdictOf(name, statusAhead(filter.Filter(ctx, state, pod, node)))
		}
	}
	return f, state
}

func verdictOf(plugin string, s *fwk.Status) *Verdict {
	if s.IsSuccess() {
		return nil
	}
	v := &Verdict{Plugin: plugin, Reasons: s.Reasons(), Unresolvable: s.Code() == fwk.UnschedulableAndUnresolvable}
	if !s.IsRejected() {
		v.Failed, v.Err = true, s.AsError().Error()
	}
	return v
}

// scoreByPlugin runs one plugin individually to score the given nodes.
func (u *upstream) scoreByPlugin(ctx context.Context, name string, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) Scoring {
	plugin := u.plugins[name]
	pod = podAhead(pod)
	if pre, ok := plugin.(fwk.PreScorePlugin); ok {
		if status := pre.PreScore(ctx, state, pod, nodes); status.IsSkip() {
			return Scoring{Skipped: true}
		} else if !status.IsSuccess() {
			return Scoring{Failed: true, Err: status.AsError().Error()}
		}
	}

	scorer, ok := plugin.(fwk.ScorePlugin)
	if !ok {
		return Scoring{Skipped: true}
	}

	list := make(fwk.NodeScoreList, len(nodes))
	for i, node := range nodes {
		score, status := scorer.Score(ctx, state, pod, node)
		if !status.IsSuccess() {
			return Scoring{Failed: true, Err: status.AsError().Error()}
		}
		list[i] = fwk.NodeScore{Name: node.Node().Name, Score: score}
	}

	if scorer.ScoreExtensions() != nil {
		if status := scorer.ScoreExtensions().NormalizeScore(ctx, state, pod, list); !status.IsSuccess() {
			return Scoring{Failed: true, Err: status.AsError().Error()}
		}
	}

	s := Scoring{Scores: make([]int64, len(list))}
	for i := range list {
		s.Scores[i] = list[i].Score
	}
	return s
}
