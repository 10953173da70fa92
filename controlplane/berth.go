// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/internal/scheduler/runner"
)

// RunBerth turns the control plane into a whole cluster by adding Berth's scheduler and controllers
// and simulated nodes node-1, node-2, … in three zones, so that pods run. It returns once the nodes
// are registered and the scheduler has synced; the components stop at the end of the test, before
// the control plane.
//
// Unlike `berth up`, RunBerth runs the components as administrator: a test may do anything. Call it
// once per cluster.
func (c *Cluster) RunBerth(nodes int) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	// Cleanups run in reverse order, so this one precedes Stop.
	c.t.Cleanup(func() { cancel(); running.Wait() })
	// A component that ends by itself is logged and does not fail the test, which then fails
	// because of the missing effect.
	run := func(name string, part func(context.Context) error) {
		running.Go(func() {
			// After the end of the test every component returns an error.
			if err := part(ctx); err != nil && ctx.Err() == nil {
				c.t.Logf("%s ended: %v", name, err)
			}
		})
	}
	// The buffer holds both messages, so that neither sender blocks.
	ready := make(chan string, 2)

	options := controller.DefaultOptions()
	// A single process needs neither leader election nor a health endpoint.
	options.Lead.Elect, options.Health = false, ""
	controllers, err := controller.New(c.Config, options)
	if err != nil {
		c.t.Fatalf("controllers: %v", err)
		return
	}
	run("controllers", controllers.Run)
	// Events use a separate client; see runner.New.
	s, err := runner.New(c.protobuf(), c.protobuf(), runner.Options{
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
	// Wait for the scheduler and the nodes, in either order.
	for range cap(ready) {
		select {
		case <-ready:
		case <-time.After(startLimit):
			c.t.Fatalf("Berth is not ready after %s", startLimit)
			return
		}
	}
}

// binders is the number of concurrent requests. It limits the scheduler's bindings and, separately,
// the requests of the nodes.
const binders = 32

// testNodes returns simulated nodes of the default size in region r1. Pods of Jobs end after a
// second.
func testNodes(count int) simkubelet.Shape {
	return simkubelet.Shape{
		Prefix: "node-", Count: count, Zones: 3, Region: "r1", Capacity: simkubelet.DefaultCapacity(), Version: KubernetesVersion,
		RenewInterval: simkubelet.RenewIntervalFor(count), StatusInterval: 5 * time.Minute, JobRunFor: time.Second,
	}
}

// protobuf returns a new administrator client using protobuf, like the components.
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
