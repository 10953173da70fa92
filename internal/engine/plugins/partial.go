package plugins

import "github.com/berth-k8s/berth/internal/engine/cluster"

// preFilterOnly is a filter that a profile enables at PreFilter and not at Filter: its verdict on
// all nodes holds, its verdict on a single node is not asked for.
type preFilterOnly struct{ whole Filter }

// BeginAttempt implements [Attempted], as the whole plugin does, if it does.
func (f preFilterOnly) BeginAttempt() { beginAttempt(f.whole) }

// BeginAttempt implements [Attempted], as the whole plugin does, if it does.
func (f filterOnly) BeginAttempt() { beginAttempt(f.whole) }

// beginAttempt passes the call on. Both halves have the method, whether or not the whole has:
// embedding would lose it.
func beginAttempt(f Filter) {
	if f, is := f.(Attempted); is {
		f.BeginAttempt()
	}
}

// Name implements [Filter]. A half has the name of the whole: messages and events name the plugin.
func (f preFilterOnly) Name() string { return f.whole.Name() }

// Reads implements [Filter]. A verdict on the whole pod may still depend on everything that the
// plugin reads.
func (f preFilterOnly) Reads() Part { return f.whole.Reads() }

// Filter implements [Filter].
func (f preFilterOnly) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	judge := f.whole.Filter(c, p)
	judge.Node = nil
	return judge
}

// filterOnly is a filter that a profile enables at Filter and not at PreFilter. Its judge is
// prepared nevertheless, so that everything except for the narrowing (Judge.Only) holds. Upstream
// fails every pod then, for lack of the state that PreFilter leaves. The exception is NodeAffinity,
// which works without that state, and does not narrow then.
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

// preScoreOnly is a scorer that a profile enables at PreScore and not at Score: all that it can do
// is fail.
type preScoreOnly struct{ whole Scorer }

// Name implements [Scorer].
func (s preScoreOnly) Name() string { return s.whole.Name() }

// Applies implements [Selective]: only pods for which the plugin fails are asked about further.
func (s preScoreOnly) Applies(c *cluster.Cluster, p *cluster.Pod) bool {
	return s.whole.Score(c, p, nil).Err != nil
}

// Score implements [Scorer]. Without an error it scores nothing.
func (s preScoreOnly) Score(c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) Scoring {
	return Scoring{Err: s.whole.Score(c, p, feasible).Err}
}
