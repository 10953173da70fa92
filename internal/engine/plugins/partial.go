package plugins

import "github.com/berth-k8s/berth/internal/engine/cluster"

// preFilterOnly is a filter that a profile enables at PreFilter and not at Filter: its verdict on
// all nodes holds, its verdict on a single node is not asked for.
type preFilterOnly struct{ whole Filter }

func (f preFilterOnly) BeginAttempt() { beginAttempt(f.whole) }

func (f filterOnly) BeginAttempt() { beginAttempt(f.whole) }

func beginAttempt(f Filter) {
	if f, is := f.(Attempted); is {
		f.BeginAttempt()
	}
}

func (f preFilterOnly) Name() string { return f.whole.Name() }

func (f preFilterOnly) Reads() Part { return f.whole.Reads() }

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

func (f filterOnly) Name() string { return f.whole.Name() }

func (f filterOnly) Reads() Part { return f.whole.Reads() }

func (f filterOnly) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	judge := f.whole.Filter(c, p)
	judge.Only = nil
	return judge
}

// preScoreOnly is a scorer that a profile enables at PreScore and not at Score: all that it can do
// is fail.
type preScoreOnly struct{ whole Scorer }

func (s preScoreOnly) Name() string { return s.whole.Name() }

func (s preScoreOnly) Applies(c *cluster.Cluster, p *cluster.Pod) bool {
	return s.whole.Score(c, p, nil).Err != nil
}

func (s preScoreOnly) Score(c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) Scoring {
	return Scoring{Err: s.whole.Score(c, p, feasible).Err}
}
