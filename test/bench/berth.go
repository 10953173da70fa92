// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"runtime"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// berth is Berth's engine without an API.
type berth struct {
	cluster *cluster.Cluster
	decider *decide.Decider
}

func newBerth(m *Mode, nodes int) *berth {
	b := &berth{cluster: cluster.New()}
	for i := range nodes {
		b.cluster.SetNode(m.newNode(i))
	}
	b.decider = decide.New(b.cluster, plugins.Default(), 1)
	return b
}

// placePod chooses a node for a pod and places the pod on it.
func (b *berth) placePod(pod *v1.Pod) error {
	p := b.cluster.Pending(pod)
	decision := b.decider.Decide(p)
	if decision.Node == nil {
		if decision.Err != nil {
			return decision.Err
		}
		return fmt.Errorf("no node for %s: %s", pod.Name, b.decider.Plain().Evaluate(p).Message(""))
	}
	b.cluster.Place(p, decision.Node)
	return nil
}

// placeUntil places pods from number first on, until the given number of pods is placed or the
// clock is done. Pods are created in batches while the clock is stopped.
func (b *berth) placeUntil(m *Mode, first, most int, clock *rounds) error {
	const largest = 1000
	var pods []*v1.Pod
	for placed, batch := 0, 8; placed < most && !clock.isDone(); placed += len(pods) {
		pods = pods[:0]
		for range min(batch, most-placed) {
			pods = append(pods, m.newPod(first+placed+len(pods)))
		}
		clock.startStep()
		for _, pod := range pods {
			if err := b.placePod(pod); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
		}
		if clock.stopSteps(len(pods)); time.Since(clock.started) < 10*time.Millisecond {
			batch = min(2*batch, largest) // reading the clock takes as long as a decision
		}
	}
	return nil
}

// Steady is the cost of a decision on a cluster with a pod on every node, after a pod of each kind
// was placed.
type Steady struct {
	Mode     string
	Nodes    int
	Decision Cost
	Pods     int
}

// measureBerth measures a steady decision on one core.
func measureBerth(m *Mode, nodes, most int, atMost time.Duration) (Steady, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	b := newBerth(m, nodes)
	for i := range nodes {
		b.cluster.Place(b.cluster.Pending(m.newPod(i)), b.cluster.Nodes[i])
	}
	if err := b.placeUntil(m, nodes, m.countKinds(), &rounds{each: 15 * time.Second}); err != nil {
		return Steady{}, err
	}
	runtime.GC()
	clock := rounds{each: atMost}
	err := b.placeUntil(m, nodes+m.countKinds(), most, &clock)
	return Steady{m.Name, nodes, clock.costOfStep(), clock.all}, err
}

// Filling is the cost of filling an empty cluster, on all cores, and the memory in use afterwards.
type Filling struct {
	Mode        string
	Nodes, Pods int
	// Took is the cost of placing all pods. First is the cost until a pod of each kind was placed.
	Took, First Cost
	// NodeBytes is the memory per node of the empty cluster, including the data kept for each kind
	// of pod. PodBytes is the increase per pod.
	NodeBytes, PodBytes int64
	// Complete reports whether all pods were placed in time.
	Complete bool
	// Steady is the cost of a decision on the full cluster, on one core.
	Steady Steady
}

func measureFilling(m *Mode, nodes, pods int, atMost time.Duration) (Filling, error) {
	before := heapSize()
	b := newBerth(m, nodes)
	f := Filling{Mode: m.Name, Nodes: nodes}
	first := rounds{each: atMost}
	if err := b.placeUntil(m, 0, m.countKinds(), &first); err != nil {
		return f, err
	}

	empty := heapSize()
	f.NodeBytes = (empty - before) / int64(nodes)
	rest := rounds{each: atMost}
	if err := b.placeUntil(m, first.all, pods-first.all, &rest); err != nil {
		return f, err
	}

	f.Pods, f.First, f.Took = first.all+rest.all, first.total, first.total.plus(rest.total)
	f.Complete = f.Pods == pods
	f.PodBytes = (heapSize() - empty) / int64(max(rest.all, 1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	more := rounds{each: time.Second}
	err := b.placeUntil(m, f.Pods, min(50_000, pods), &more)
	f.Steady = Steady{m.Name, nodes, more.costOfStep(), more.all}
	return f, err
}

func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
