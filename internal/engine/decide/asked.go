package decide

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// askedFilter is a filter whose verdict groups of nodes cannot express: it reads API objects
// (volumes, device claims), or is out-of-tree. It is asked node by node, about the nodes that pass
// all other filters.
type askedFilter struct {
	filter plugins.Filter
	step   int // its index in the steps of the plan
}

// applies reports whether a filter or scorer can have any effect on pods of the class.
func applies(plugin any, c *cluster.Cluster, p *cluster.Pod) bool {
	s, ok := plugin.(plugins.Selective)
	return !ok || s.Applies(c, p)
}

// questions are the judges of a plan's asked filters, for one pod.
type questions struct {
	judges []judge       // by plan.asked; nil where a filter lets all nodes pass. nil: there are none
	again  []func() bool // see plugins.Judge
}

type judge func(n *cluster.Node) *plugins.Rejection

// questions asks the filters for their judges; ok is false if one of them rejects the pod as a
// whole, fails, or names nodes.
func (pl *plan) questions(c *cluster.Cluster, p *cluster.Pod) (q questions, ok bool) {
	for _, a := range pl.asked {
		judge := a.filter.Filter(c, p)
		if judge.Again != nil {
			q.again = append(q.again, judge.Again)
		}
		if judge.Err != nil || judge.All != nil || judge.Only != nil {
			return questions{}, false
		}
		q.judges = append(q.judges, judge.Node)
	}
	return q, true
}

// ask asks those of the questions that precede a step of the plan about a node, and returns the
// first rejection.
func (q questions) ask(pl *plan, before int, n *cluster.Node) *plugins.Rejection {
	for i, judge := range q.judges {
		if judge != nil && pl.asked[i].step < before {
			if rejection := judge(n); rejection != nil {
				return rejection
			}
		}
	}
	return nil
}

// chooseAmong finds the best of the nodes that are feasible by the ranking and by the questions.
func (d *Decider) chooseAmong(r *ranking, p *cluster.Pod, pl *plan, q questions) Decision {
	r.feasible()
	left, failed := r.left(q)
	if failed {
		return d.scan(p) // which finds the error to report: the first
	}
	if len(left) == 0 {
		return Decision{}
	}
	if len(left) == 1 {
		return Decision{Node: d.c.Nodes[left[0]], Feasible: 1}
	}
	totals := r.totals(left)
	if len(pl.askedScores) > 0 {
		if err := d.addScores(pl.askedScores, p, left, totals); err != nil {
			return Decision{Err: err}
		}
	}
	best, total, fine, ties := none, int64(math.MinInt64), int64(0), 0
	for i, node := range left {
		switch order := cmp.Or(cmp.Compare(totals[i], total), cmp.Compare(r.fineOf(node), fine)); {
		case order > 0 || best == none:
			best, total, fine, ties = node, totals[i], r.fineOf(node), 1
		case order == 0:
			if ties++; (d.tie.draw(ties) == 0 || node == d.tie.preferred) && best != d.tie.preferred {
				best = node
			}
		}
	}
	return Decision{Node: d.c.Nodes[best], Total: total, Feasible: len(left)}
}

// left asks about the nodes with room, in parallel, and returns those that remain feasible.
// Infeasible nodes are asked about, too, if a question precedes the filter that rejects them: it
// may fail, and then the attempt fails.
func (r *ranking) left(q questions) (left []int32, failed bool) {
	nodes := r.space.asked[:0]
	for i, bucket := range r.bucket {
		if bucket >= 0 || bucket > ^settled && r.plan.asksEarly {
			nodes = append(nodes, int32(i))
		}
	}

	r.space.asked = nodes
	r.ix.meter.Work += effort.CostOfPod(r.plan.example) * len(nodes)
	before := make([]int, len(r.groups))
	for i, g := range r.groups {
		if before[i] = len(r.plan.steps); g.ok > 0 && !g.feasible || g.ok == 0 && r.plan.asksEarly {
			if plugin, rejection := r.judgeGroup(g); rejection != nil {
				before[i] = r.plan.stepOf(plugin)
			}
		}
	}

	verdicts := make([]verdict, len(nodes))
	askAll(len(nodes), q.again, func(i int) {
		group, bucket := r.groupAt(nodes[i]), r.bucket[nodes[i]]
		step := before[group]
		if bucket < 0 {
			step = min(step, r.plan.stepOf(r.reasons[reasonIn(bucket)].plugin))
		}
		rejection := q.ask(r.plan, step, r.ix.c.Nodes[nodes[i]])
		switch {
		case rejection != nil && rejection.Err != nil:
			verdicts[i] = fails
		case rejection == nil && bucket >= 0 && r.groups[group].feasible:
			verdicts[i] = passes
		default:
			verdicts[i] = rejects
		}
	})

	left = nodes[:0]
	for i, v := range verdicts {
		switch v {
		case fails:
			return nil, true
		case passes:
			left = append(left, nodes[i])
		}
	}

	return left, false
}

type verdict uint8

const (
	rejects verdict = iota
	passes
	fails
)

// totals scores nodes as the ranking would if only these were feasible.
func (r *ranking) totals(nodes []int32) []int64 {
	ok := make([]int32, len(r.groups))
	for i, g := range r.groups {
		ok[i], g.ok = g.ok, 0
	}

	for _, node := range nodes {
		r.groups[r.groupAt(node)].ok++
	}
	r.weighSpread(r.weights(nodes))
	b := r.bounds()
	fixed := make([]int64, len(r.groups))

	for i, g := range r.groups {
		if g.ok > 0 {
			fixed[i] = r.fixedScore(g, &b)
		}
		g.ok = ok[i]
	}

	totals := make([]int64, len(nodes))
	for i, node := range nodes {
		totals[i] = fixed[r.groupAt(node)] + int64(r.bucket[node])
	}
	return totals
}

// addScores adds the scores that groups cannot express.
func (d *Decider) addScores(scorers []plugins.Weighted, p *cluster.Pod, nodes []int32, totals []int64) error {
	feasible := make([]*cluster.Node, len(nodes))
	for i, node := range nodes {
		feasible[i] = d.c.Nodes[node]
	}
	for _, s := range scorers {
		scores, _, err := scoresOf(s.Scorer, d.c, p, feasible) // those with fine scores are in the ranking
		if err != nil {
			return err
		}
		for i, score := range scores {
			totals[i] += score * s.Weight
		}
	}
	return nil
}

// scoresOf returns a scorer's normalised scores, nil if it scores nothing, and its fine scores, nil
// if it has none.
func scoresOf(s plugins.Scorer, c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) (scores, fine []int64, err error) {
	scoring := s.Score(c, p, feasible)
	switch {
	case scoring.Err != nil && s.Name() == plugins.PreScorers: // its error names the plugin
		return nil, nil, scoring.Err
	case scoring.Err != nil:
		return nil, nil, fmt.Errorf("running PreScore plugin %q: %w", s.Name(), scoring.Err)
	case scoring.Node == nil:
		return nil, nil, nil
	}
	scores = make([]int64, len(feasible))
	if scoring.Exact != nil {
		fine = make([]int64, len(feasible))
		parallel(len(feasible), func(i int) { scores[i], fine[i] = scoring.Exact(feasible[i]) })
		return scores, fine, nil
	}
	errs := make([]error, len(feasible))
	parallel(len(feasible), func(i int) { scores[i], errs[i] = scoring.Node(feasible[i]) })
	for _, err := range errs {
		if err != nil {
			return nil, nil, fmt.Errorf("running Score plugins: plugin %q failed with: %w", s.Name(), err)
		}
	}
	if scoring.Normalize != nil {
		scoring.Normalize(feasible, scores)
	}
	if scoring.Finish != nil {
		return scores, nil, scoring.Finish(feasible, scores)
	}
	return scores, nil, nil
}

// askAll calls f, which asks filters about a node, for 0..n-1: on all cores, and then again in
// order if one of the filters wants that; see plugins.Judge.
func askAll(n int, again []func() bool, f func(i int)) {
	parallel(n, f)
	inOrder := false
	for _, wanted := range again {
		inOrder = wanted() || inOrder
	}
	for i := 0; inOrder && i < n; i++ {
		f(i)
	}
}

// worthwhile is the number of nodes from which using all cores pays off.
var worthwhile = 256

// parallel calls f for 0..n-1, on all cores if that pays off.
func parallel(n int, f func(i int)) {
	workers := runtime.GOMAXPROCS(0)
	if n < worthwhile || workers == 1 {
		for i := range n {
			f(i)
		}
		return
	}

	var running sync.WaitGroup
	var panicked atomic.Pointer[workerPanic]
	for w := range workers {
		running.Go(func() {
			defer func() {
				if value := recover(); value != nil {
					panicked.CompareAndSwap(nil, &workerPanic{value, debug.Stack()})
				}
			}()
			for i := n * w / workers; i < n*(w+1)/workers; i++ {
				f(i)
			}
		})
	}

	running.Wait()
	if p := panicked.Load(); p != nil {
		panic(p)
	}
}

// workerPanic carries a panic from a goroutine of parallel to its caller, which alone can recover
// from it.
type workerPanic struct {
	value any
	stack []byte
}

func (p *workerPanic) String() string { return fmt.Sprint(p.value) }

// Stack returns the stack of the goroutine that panicked.
func (p *workerPanic) Stack() []byte { return p.stack }
