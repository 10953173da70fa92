// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

type judge func(n *cluster.Node) *plugins.Rejection

// scoresOf returns a scorer's normalized scores and fine scores. scores is nil if the scorer skips
// the pod, and fine is nil if the scorer has no fine scores.
func scoresOf(s plugins.Scorer, c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) (scores, fine []int64, err error) {
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
	errs := make([]error, len(feasible))
	runParallel(len(feasible), func(i int) { scores[i], errs[i] = scoring.Node(feasible[i]) })
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
