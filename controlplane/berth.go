package controlplane

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/controller"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/node/simnodes"
	"github.com/berth-k8s/berth/internal/node/simnodes/kubelet"
	"github.com/berth-k8s/berth/internal/scheduler/live"
)

// RunBerth makes the control plane a whole cluster: Berth's scheduler and controllers, and
// simulated nodes node-1, node-2, … in three zones, so that pods run. It returns when the nodes are
// registered and the scheduler knows the cluster; all of it ends with the test, before the control
// plane does.
//
// It runs them as administrator, unlike `berth up`: a test may do anything. It may be called once
// for a cluster.
func (c *Cluster) RunBerth(nodes int) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	// Cleanups run in reverse order, so that this one comes before Stop.
	c.t.Cleanup(func() { cancel(); running.Wait() })
	// What ends by itself is logged, and does not fail the test: the test notices what is missing.
	run := func(name string, part func(context.Context) error) {
		running.Go(func() {
			// After the test's end everything ends with an error.
			if err := part(ctx); err != nil && ctx.Err() == nil {
				c.t.Logf("%s ended: %v", name, err)
			}
		})
	}
	// Room for both, so that neither waits for the test.
	ready := make(chan string, 2)

	options := controller.DefaultOptions()
	// One process: there is nobody to elect against, and nobody asks for its health.
	options.Lead.Elect, options.Health = false, ""
	controllers, err := controller.New(c.Config, options)
	if err != nil {
		c.t.Fatalf("controllers: %v", err)
		return
	}
	run("controllers", controllers.Run)
	// Events have a client of their own; see live.New.
	s, err := live.New(c.protobuf(), c.protobuf(), live.Options{
		Profiles: []cycle.Profile{{Profile: plugins.Default()}}, Ready: func() { ready <- "scheduler" },
	})
	if err != nil {
		c.t.Fatalf("scheduler: %v", err)
		return
	}
	run("scheduler", func(ctx context.Context) error { return s.Run(ctx, binders) })
	client := c.protobuf()
	run("nodes", func(ctx context.Context) error {
		return simnodes.Run(ctx, client, simnodes.Options{
			Shape: testNodes(nodes), Workers: binders, Log: slog.New(slog.DiscardHandler),
			Ready: func(int, time.Duration) { ready <- "nodes" },
		})
	})
	// For the scheduler and the nodes, in whichever order.
	for range cap(ready) {
		select {
		case <-ready:
		case <-time.After(startLimit):
			c.t.Fatalf("Berth is not ready after %s", startLimit)
			return
		}
	}
}

// binders is how many requests of a kind are under way at once. It bounds bindings of the scheduler
// and, separately, requests of the nodes.
const binders = 32

// testNodes are simulated nodes of the default size. Pods of Jobs end after a second. They are in
// the region r1.
func testNodes(count int) kubelet.Shape {
	return kubelet.Shape{
		Prefix: "node-", Count: count, Zones: 3, Region: "r1", Capacity: kubelet.DefaultCapacity(), Version: KubernetesVersion,
		RenewInterval: kubelet.RenewIntervalFor(count), StatusInterval: 5 * time.Minute, JobRunFor: time.Second,
	}
}

// protobuf is a new client of the administrator's that speaks protobuf, as the components do.
func (c *Cluster) protobuf() kubernetes.Interface {
	c.t.Helper()
	config := rest.CopyConfig(c.Config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.t.Fatalf("client: %v", err)
	}
	return client
}
