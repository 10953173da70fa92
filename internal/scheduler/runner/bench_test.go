// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// BenchmarkOwner measures the scheduler's own cost per pod in a cluster of 5,000 nodes. For each
// pod, the core gets the event of the watch, decides the pod, and queues the binding for a worker.
// The binding takes no time, and the core then gets the bound pod. Kubernetes events are not
// written.
func BenchmarkOwner(b *testing.B) {
	for _, shapes := range []int{1, 500} {
		b.Run(fmt.Sprintf("shapes=%d", shapes), func(b *testing.B) { benchOwner(b, shapes) })
	}
}

func benchOwner(b *testing.B, shapes int) {
	const nodes = 5000
	client := fakeapi.New().Client()
	s, err := New(client, client, Options{Profiles: []cycle.Profile{{Profile: plugins.Default()}}})
	if err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	byUID := map[types.UID]*v1.Pod{}
	for i := range nodes {
		n := aNode(fmt.Sprintf("n%d", i), "100000")
		n.Status.Allocatable[v1.ResourceMemory] = *many()
		n.Status.Allocatable[v1.ResourcePods] = *many()
		s.loop.Take(cycle.Seen{Kind: cycle.Nodes, Object: n})
	}
	pods := make([]*v1.Pod, b.N)
	for i := range pods {
		p := aPod(fmt.Sprintf("p%d", i), "100m")
		p.UID, p.Labels = types.UID(p.Name), map[string]string{"app": fmt.Sprint(i % shapes)}
		pods[i], byUID[p.UID] = p, p
	}
	ctx, stop := context.WithCancel(context.Background())
	s.life.running = ctx
	done := make(chan struct{})
	go func() { defer close(done); s.binders.runWorkers(ctx, context.Background(), 2) }()
	b.ReportAllocs()
	b.ResetTimer()
	began, cpu, shown := time.Now(), cpuTime(b), 0
	s.loop.Take(cycle.Follows{})
	s.loop.Take(cycle.Led{})
	bound := map[types.UID]string{}
	s.binding.post = func(_ context.Context, b *v1.Binding) error {
		mu.Lock()
		defer mu.Unlock()
		bound[b.UID] = b.Target.Name
		return nil
	}
	for i := 0; shown < b.N; {
		for k := 0; k < 64 && i < b.N; k++ {
			s.loop.Take(cycle.Seen{Kind: cycle.Pods, Object: pods[i]})
			i++
		}
		for !s.loop.CatchUp().After(s.loop.Now()) {
			s.loop.Take(cycle.Tick{})
		}
		mu.Lock()
		for uid, node := range bound {
			onNode := *byUID[uid]
			onNode.Spec.NodeName = node
			s.loop.Take(cycle.Seen{Kind: cycle.Pods, Object: &onNode})
			delete(bound, uid)
			shown++
		}
		mu.Unlock()
	}
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "pods/s")
	b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N)/1e3, "cpu-µs/pod") // including garbage collection and the worker
	stop()
	<-done
}

// cpuTime returns the CPU time used by the process on all processors. Unlike elapsed time, it does
// not depend on other load on the machine.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
