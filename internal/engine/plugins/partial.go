// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import "github.com/berth-k8s/berth/internal/engine/cluster"

// partial is a filter of which a profile enables only some extension points. It has the name of the
// whole plugin, which messages and events contain, and its reads: any verdict may depend on all of
// them.
type partial struct{ Filter }

// BeginAttempt implements [Attempted] even if the whole plugin does not.
func (f partial) BeginAttempt() {
	if f, is := f.Filter.(Attempted); is {
		f.BeginAttempt()
	}
}

// preFilterOnly is a filter enabled by a profile at PreFilter but not at Filter. Only its verdict
// on all nodes applies.
type preFilterOnly struct{ partial }

// Filter implements [Filter].
func (f preFilterOnly) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	judge := f.partial.Filter.Filter(c, p)
	judge.Node = nil
	return judge
}

// filterOnly is a filter enabled by a profile at Filter but not at PreFilter. It still prepares its
// judge, so that everything except the narrowing (Judge.Only) applies. Upstream fails every pod in
// this case, for lack of the state written by PreFilter, except in NodeAffinity, which works
// without that state but does not narrow.
type filterOnly struct{ partial }

// Filter implements [Filter].
func (f filterOnly) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	judge := f.partial.Filter.Filter(c, p)
	judge.Only = nil
	return judge
}

// preScoreOnly is a scorer enabled by a profile at PreScore but not at Score: it can only fail.
type preScoreOnly struct{ whole Scorer }

// Name implements [Scorer].
func (s preScoreOnly) Name() string { return s.whole.Name() }

// Applies implements [Selective]. It selects only pods for which the plugin fails.
func (s preScoreOnly) Applies(c *cluster.Cluster, p *cluster.Pod) bool {
	return s.whole.Score(c, p, nil).Err != nil
}

// Score implements [Scorer]. Without an error it scores nothing.
func (s preScoreOnly) Score(c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) Scoring {
	return Scoring{Err: s.whole.Score(c, p, feasible).Err}
}
