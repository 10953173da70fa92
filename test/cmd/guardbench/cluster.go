// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/bench/workloads"
	"github.com/berth-k8s/berth/test/internal/process"
)

const nodeCPU = 16000 // millicores

// bench is a cluster of the programs that berth up starts, except for the scheduler.
type bench struct {
	workloads.Cluster
	*options
	controller, webhook *process.Process     // webhook is nil without the guard
	evictor             kubernetes.Interface // of drainByLibrary

	listing sync.Mutex // guards the following
	counted time.Time
	podsOn  map[string]int // the pods of the workloads by node, as of counted
}

// start starts the control plane, Berth's controllers, the guard and the simulated nodes.
func start(ctx context.Context, r *driver.Run, o *options, guard bool) (*bench, error) {
	control, controllers := []string{}, "*"
	if guard {
		control, controllers = []string{"--guard-evictions"}, "*,eviction-guard"
	}
	c, err := r.StartCluster(ctx, control...)
	if err != nil {
		return nil, err
	}
	b := &bench{Cluster: workloads.Cluster{Cluster: c}, options: o}
	serve := func(args ...string) *process.Process {
		if err == nil {
			err = c.Serve(driver.Berth, append(args, "--kubeconfig", c.Kubeconfig, "--health-bind-address", "127.0.0.1:0")...)
		}
		return c.Last()
	}
	b.controller = serve("controller", "--leader-elect=false", "--controllers", controllers)
	if guard {
		b.webhook = serve("webhook", "--guard-evictions", "--rules=false", "--namespace", metav1.NamespaceSystem,
			"--bind-address", "127.0.0.1:0", "--advertise-host", "127.0.0.1", "--shutdown-delay", "0s")
	}
	if err != nil {
		b.Stop()
		return nil, err
	}
	return b, nil
}

// emptier empties a node. It returns an error if the node was not empty in time.
type emptier func(ctx context.Context, node string) error

// prepare starts the evictor and returns its emptier.
func (b *bench) prepare(ctx context.Context, evictor string) (emptier, error) {
	switch evictor {
	case karpenter:
		return b.startKarpenter(ctx)
	case descheduler:
		return b.startDescheduler(ctx)
	case library:
		var err error
		if b.evictor, err = driver.NewClient(b.Kubeconfig, libraryQPS, libraryBurst); err != nil {
			return nil, err
		}
		return b.drainByLibrary, b.startNodes(ctx)
	}
	return b.drainByKubectl, b.startNodes(ctx)
}

func (b *bench) startNodes(ctx context.Context) error {
	return b.StartNodes(ctx, b.nodes, "--cpu", fmt.Sprintf("%dm", nodeCPU))
}

// emptyAll empties every node with a workload, some at a time.
func (b *bench) emptyAll(ctx context.Context, empty emptier, done *result) error {
	names, err := b.busyNodes(ctx)
	if err != nil {
		return err
	}
	b.Printf("%s beside %s, guard %s: %d nodes", done.evictor, done.scheduler, done.guard, len(names))
	var mu sync.Mutex // guards next and the result
	var running sync.WaitGroup
	next, end := 0, time.Now().Add(cmp.Or(b.limit, 24*time.Hour))
	for range b.parallel {
		running.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				if next >= len(names) || time.Now().After(end) {
					done.skipped = len(names) - next
					mu.Unlock()
					return
				}
				name := names[next]
				next++
				mu.Unlock()
				began := time.Now()
				err := empty(ctx, name)
				mu.Lock()
				if err == nil {
					done.emptied = append(done.emptied, time.Since(began))
				} else {
					done.stuck++
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return ctx.Err()
}

// busyNodes returns the names of the nodes with pods of the workloads.
func (b *bench) busyNodes(ctx context.Context) ([]string, error) {
	if _, err := b.countPods(ctx, ""); err != nil {
		return nil, err
	}
	delete(b.podsOn, "") // pods without a node
	return slices.SortedFunc(maps.Keys(b.podsOn), compareNames), nil
}

// compareNames compares names first by length, so that node-9 precedes node-10.
func compareNames(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// awaitEmpty waits until no pod of a workload is on the node.
func (b *bench) awaitEmpty(ctx context.Context, node string) error {
	return b.Until(ctx, node+" to be empty", b.timeout, func() (string, error) {
		count, err := b.countPods(ctx, node)
		return driver.Lacking(count, 0), err
	})
}

// countPods returns how many pods of the workloads were on a node a second ago or later. One
// request counts the pods of all nodes, because hundreds of nodes may be waited for.
func (b *bench) countPods(ctx context.Context, node string) (int, error) {
	b.listing.Lock()
	defer b.listing.Unlock()
	if time.Since(b.counted) > time.Second {
		pods, err := b.Client.CoreV1().Pods(workloads.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return 0, err
		}
		b.counted, b.podsOn = time.Now(), map[string]int{}
		for i := range pods.Items {
			b.podsOn[pods.Items[i].Spec.NodeName]++
		}
	}
	return b.podsOn[node], nil
}
