// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/tainteviction"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/eviction/evictioncontroller"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/controller/nodehealth/nodecontroller"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// side runs controllers on an API server until the context ends.
type side func(ctx context.Context, server *fakeapi.Server, o options) error

func upstream(ctx context.Context, server *fakeapi.Server, o options) error {
	client := fakeapi.ClientOf(unconditional{server})
	factory := informers.NewSharedInformerFactory(client, 0)
	core, apps, leases := factory.Core().V1(), factory.Apps().V1(), factory.Coordination().V1()
	health, err := nodelifecycle.NewNodeLifecycleController(ctx, leases.Leases(), core.Pods(), core.Nodes(), apps.DaemonSets(), client,
		o.period, o.startup, o.grace, float32(o.rate), float32(o.secondary), int32(o.large), float32(o.unhealthy))
	if err != nil {
		return err
	}
	evictions, err := tainteviction.New(ctx, client, core.Pods(), core.Nodes(), "taint-eviction-controller")
	if err != nil {
		return err
	}

	factory.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() { health.Run(ctx) })
	running.Go(func() { evictions.Run(ctx) })
	running.Wait()
	factory.Shutdown()
	return nil
}

func berth(ctx context.Context, server *fakeapi.Server, o options) error {
	client := server.Client()
	events := eventlog.New(client, "node-controller")
	h := nodehealth.Defaults()
	h.ReadsLeases = true
	h.MonitorPeriod, h.MonitorGracePeriod, h.StartupGracePeriod = o.period, o.grace, o.startup
	h.EvictionRate, h.SecondaryEvictionRate, h.UnhealthyZoneThreshold, h.LargeClusterSize = o.rate, o.secondary, o.unhealthy, o.large
	health := nodecontroller.New(client, events, h)
	evictions := evictioncontroller.New(client, evictioncontroller.Events{Nodes: events}, eviction.Options{InFlight: eviction.DefaultInFlight})

	var running sync.WaitGroup
	running.Go(func() { events.Run(ctx) })
	running.Go(func() { health.Run(ctx) })
	running.Go(func() { evictions.Run(ctx) })
	running.Wait()
	return nil
}

// unconditional removes the resource version from patches of nodes. After a conflict upstream's
// controller sleeps with a mutex held, and virtual time does not advance while a goroutine waits
// for a mutex.
type unconditional struct{ *fakeapi.Server }

func (u unconditional) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(versions.ReplaceAll(body, nil)))
	}
	return u.Server.RoundTrip(r)
}

var versions = regexp.MustCompile(`"resourceVersion":"[0-9]*",?`)
