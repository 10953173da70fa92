// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import "github.com/berth-k8s/berth/internal/engine/cluster"

// preFilterOnly is a filter enabled by a profile at PreFilter but not at Filter. Only its verdict
// on all nodes applies.
type preFilterOnly struct{ whole Filter }

// BeginAttempt implements [Attempted] if the whole plugin does.
func (f preFilterOnly) BeginAttempt() { beginAttempt(f.whole) }

// BeginAttempt implements [Attempted] if the whole plugin does.
func (f filterOnly) BeginAttempt() { beginAttempt(f.whole) }

// beginAttempt forwards the call. Both preFilterOnly and filterOnly implement [Attempted] even if
// the whole plugin does not.
func beginAttempt(f Filter) {
	if f, is := f.(Attempted); is {
		f.BeginAttempt()
	}
}

// Name implements [Filter]. It returns the name of the whole plugin, which messages and events
// contain.
func (f preFilterOnly) Name() string { return f.whole.Name() }

// Reads implements [Filter]. A verdict on the whole pod may still depend on all parts read by the
// plugin.
func (f preFilterOnly) Reads() Part { return f.whole.Reads() }

// Filter implements [Filter].
func (f preFilterOnly) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	judge := f.whole.Filter(c, p)
	judge.Node = nil
	return judge
}

// filterOnly is a filter enabled by a profile at Filter but not at PreFilter. It still prepares its
// judge, so that everything except the narrowing (Judge.Only) applies. Upstream fails every pod in
// this case, for lack of the state written by PreFilter, except in NodeAffinity, which works
// without that state but does not narrow.
type filterOnly struct{ whole Filter }

// Name implements [Filter].
func (f filterOnly) Name() string { return f.whole.Name() }

// Reads implements [Filter].
func (f filterOnly) Reads() Part { return f.whole.Reads() }

// Filter implements [Filter].
func (f filterOnly) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	judge := f.whole.Filter(c, p)
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
