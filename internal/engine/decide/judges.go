// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// judges holds the judges of all filters of a profile for one pod.
//
// They are valid for the state of the cluster at the time of their preparation. After pods are
// placed or removed, new judges must be prepared.
type judges struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	p       *cluster.Pod

	err      error
	all      *plugins.Rejection // rejection of every node
	rejector string             // plugin that rejects every node

	left *effort.Budget // budget for judging nodes with nominated pods

	only map[string]bool // nodes to consider; nil: all nodes
	// anywhere is set if all nodes are considered, whether or not they are listed in only.
	anywhere bool
	outside  *plugins.Rejection // rejection of nodes that are not listed in only
	names    []string
	judges   []func(n *cluster.Node) *plugins.Rejection
	static   int           // number of judges before the first that reads pods or other objects
	again    []func() bool // see plugins.Judge
}

// prepareFilters prepares the judges of all filters, in the order of PreFilter. Like upstream, it
// stops at the first unresolvable rejection of the pod. It continues after a rejection that
// removing pods might resolve, and reports the last such rejection.
func prepareFilters(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) *judges {
	j := &judges{c: c, profile: profile, p: p}
	var narrowing []string
	asked := make([]judge, len(profile.Filters))
	for _, i := range profile.PreFilterOrder() {
		f := profile.Filters[i]
		judge := f.Filter(c, p)
		if judge.Err != nil {
			j.err = fmt.Errorf("running PreFilter plugin %q: %w", f.Name(), judge.Err)
			return j
		}
		if judge.All != nil {
			j.all, j.rejector = judge.All, f.Name()
			if judge.All.Unresolvable {
				return j
			}
		}
		if judge.Only != nil {
			narrowing = append(narrowing, f.Name())
			j.only = intersect(j.only, judge.Only)
			if len(j.only) == 0 {
				j.all, j.rejector = rejectEverywhere(narrowing), ""
				return j
			}
		}
		asked[i] = judge.Node
		if judge.Again != nil {
			j.again = append(j.again, judge.Again)
		}
	}

	for i, judge := range asked {
		if judge != nil {
			if j.static == len(j.judges) && readsOf(profile.Filters[i], p)&(plugins.Contents|plugins.Objects|plugins.Others) == 0 {
				j.static++
			}
			j.names, j.judges = append(j.names, profile.Filters[i].Name()), append(j.judges, judge)
		}
	}

	if j.only != nil {
		slices.Sort(narrowing)
		j.outside = &plugins.Rejection{
			Code: "NotSelected", Unresolvable: true, Reasons: []string{fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", narrowing)},
		}
	}
	return j
}

// intersect returns the nodes allowed by both a and b; nil allows all nodes.
func intersect(a, b map[string]bool) map[string]bool {
	if a == nil {
		return b
	}
	both := maps.Clone(a)
	maps.DeleteFunc(both, func(name string, _ bool) bool { return !b[name] })
	return both
}

// rejectEverywhere returns the rejection of a pod narrowed by plugins to an empty set of nodes,
// with upstream's wording.
func rejectEverywhere(narrowing []string) *plugins.Rejection {
	slices.Sort(narrowing)
	reason := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", narrowing)
	if len(narrowing) == 1 {
		reason = "node(s) didn't satisfy plugin " + narrowing[0]
	}
	return &plugins.Rejection{Code: "NotSelected", Unresolvable: true, Reasons: []string{reason}}
}

// judgeNode judges a node with its current pods. It returns the first plugin that rejects the node,
// and the rejection.
func (j *judges) judgeNode(n *cluster.Node) (string, *plugins.Rejection) {
	if !j.anywhere && j.only != nil && !j.only[n.Name] {
		return "", j.outside
	}
	for i, judge := range j.judges {
		if r := judge(n); r != nil {
			return j.names[i], r
		}
	}
	return "", nil
}

// judgeWithNominated judges a node. If pods of the same or a higher priority are nominated to the
// node, it judges the node with these pods placed there, and again without them, since they may be
// placed elsewhere.
func (j *judges) judgeWithNominated(n *cluster.Node) (string, *plugins.Rejection) {
	if !j.anywhere && j.only != nil && !j.only[n.Name] {
		return "", j.outside
	}
	if guests := nominatedBefore(n, j.p); len(guests) > 0 {
		for i, judge := range j.judges[:j.static] {
			if r := judge(n); r != nil { // regardless of the guests
				return j.names[i], r
			}
		}
		var plugin string
		var rejection *plugins.Rejection
		if !j.left.Spend(effort.CostOfPreparing(j.c, j.p)) {
			return "", &plugins.Rejection{Err: errGuestsTooLong}
		}
		j.c.Suppose(func() {
			for i, g := range guests {
				guests[i] = j.c.Visit(g, n)
			}
			with := prepareFilters(j.c, j.profile, j.p)
			if with.err != nil {
				rejection = &plugins.Rejection{Err: with.err}
				return
			}
			with.anywhere = j.anywhere
			plugin, rejection = with.judgeNode(n)
		}, func() {
			for _, g := range guests {
				j.c.Leave(g)
			}
		})
		if rejection != nil {
			return plugin, rejection
		}
	}

	return j.judgeNode(n)
}

// nominatedBefore returns the pods nominated to the node that take precedence over p.
func nominatedBefore(n *cluster.Node, p *cluster.Pod) []*cluster.Pod {
	var guests []*cluster.Pod
	for _, g := range n.Nominated {
		if g.Class.Priority >= p.Class.Priority && g.UID() != p.UID() {
			guests = append(guests, g)
		}
	}
	return guests
}

// FilterError is the error of a filter that failed on a node.
type FilterError struct {
	Plugin string
	Err    error
}

func (e *FilterError) Error() string {
	return fmt.Sprintf("running %q filter plugin: %v", e.Plugin, e.Err)
}

func (e *FilterError) Unwrap() error { return e.Err }

// fitsNow judges a node in its current state with newly prepared filters. It returns the plugin
// that rejects the node, and the rejection.
func fitsNow(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, n *cluster.Node) (string, *plugins.Rejection) {
	j := prepareFilters(c, profile, p)
	switch {
	case j.err != nil:
		return "", &plugins.Rejection{Err: j.err}
	case j.all != nil:
		return j.rejector, j.all
	}
	return j.judgeWithNominated(n)
}

type judge func(n *cluster.Node) *plugins.Rejection

// ScoresOf returns a scorer's normalized scores and fine scores. scores is nil if the scorer skips
// the pod, and fine is nil if the scorer has no fine scores.
func ScoresOf(s plugins.Scorer, c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) (scores, fine []int64, err error) {
	scoring := s.Score(c, p, feasible)
	switch {
	case scoring.Err != nil && s.Name() == plugins.PreScorers: // the error already names the plugin
		return nil, nil, scoring.Err
	case scoring.Err != nil:
		return nil, nil, fmt.Errorf("running PreScore plugin %q: %w", s.Name(), scoring.Err)
	case scoring.Node == nil:
		return nil, nil, nil
	}
	scores = make([]int64, len(feasible))
	if scoring.Exact != nil {
		fine = make([]int64, len(feasible))
		runParallel(len(feasible), func(i int) { scores[i], fine[i] = scoring.Exact(feasible[i]) })
		return scores, fine, nil
	}

	var lock sync.Mutex
	first := len(feasible) // the node whose error is returned
	runParallel(len(feasible), func(i int) {
		score, failed := scoring.Node(feasible[i])
		if scores[i] = score; failed != nil {
			lock.Lock()
			defer lock.Unlock()
			if i < first {
				first, err = i, failed
			}
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("running Score plugins: plugin %q failed with: %w", s.Name(), err)
	}
	if scoring.Normalize != nil {
		scoring.Normalize(feasible, scores)
	}
	if scoring.Finish != nil {
		return scores, nil, scoring.Finish(feasible, scores)
	}
	return scores, nil, nil
}

// askAll calls f, which runs filters on a node, for 0..n-1: first on all cores, and then again in
// order if a filter requests this; see plugins.Judge. f must write only to data of its index, and
// must not use the caller's scratch space.
func askAll(n int, again []func() bool, f func(i int)) {
	runParallel(n, f)
	inOrder := false
	for _, wanted := range again {
		inOrder = wanted() || inOrder
	}
	for i := 0; inOrder && i < n; i++ {
		f(i)
	}
}

// worthwhile is the minimum number of nodes for which the use of all cores pays off.
var worthwhile = 256

// runParallel calls f for 0..n-1, on all cores if that pays off.
func runParallel(n int, f func(i int)) {
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

// workerPanic carries a panic from a goroutine of runParallel to the caller of runParallel, since
// only the caller can recover from it.
type workerPanic struct {
	value any
	stack []byte
}

func (p *workerPanic) String() string { return fmt.Sprint(p.value) }

// Stack returns the stack of the goroutine that panicked.
func (p *workerPanic) Stack() []byte { return p.stack }
