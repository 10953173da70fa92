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
func (c *Cluster) RunBerth(nodes int) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	c.t.Cleanup(func() { cancel(); running.Wait() })
	run := func(name string, part func(context.Context) error) {
		running.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				c.t.Logf("%s ended: %v", name, err)
			}
		})
	}
	ready := make(chan string, 2)

	options := controller.DefaultOptions()
	options.Lead.Elect, options.Health = false, ""
	controllers, err := controller.New(c.Config, options)
	if err != nil {
		c.t.Fatalf("controllers: %v", err)
		return
	}
	run("controllers", controllers.Run)
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
	for range cap(ready) {
		select {
		case <-ready:
		case <-time.After(startLimit):
			c.t.Fatalf("Berth is not ready after %s", startLimit)
			return
		}
	}
}

// binders is how many requests of a kind are under way at once.
const binders = 32

func testNodes(count int) kubelet.Shape {
	return kubelet.Shape{
		Prefix: "node-", Count: count, Zones: 3, Region: "r1", Capacity: kubelet.DefaultCapacity(), Version: KubernetesVersion,
		RenewInterval: kubelet.RenewIntervalFor(count), StatusInterval: 5 * time.Minute, JobRunFor: time.Second,
	}
}

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
