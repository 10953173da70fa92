// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"context"
	"sync"

	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/eviction/evictioncontroller"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/controller/nodehealth/nodecontroller"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/test/inplace/hook"
)

func runNodeHealth(ctx context.Context, with hook.NodeHealth) {
	options := nodehealth.Defaults()
	options.MonitorPeriod, options.MonitorGracePeriod, options.StartupGracePeriod = with.MonitorPeriod,
		with.MonitorGracePeriod, with.StartupGracePeriod
	options.EvictionRate, options.SecondaryEvictionRate = float64(with.EvictionRate), float64(with.SecondaryRate)
	options.UnhealthyZoneThreshold, options.LargeClusterSize = float64(with.UnhealthyZone), int(with.LargeCluster)
	events := eventlog.New(with.Client, "node-controller")
	together(ctx, events.Run, nodecontroller.New(with.Client, events, options).Run)
}

func runEviction(ctx context.Context, client kubernetes.Interface) {
	events := eventlog.New(client, evictioncontroller.Name)
	together(ctx, events.Run, evictioncontroller.New(client, evictioncontroller.Events{Nodes: events}, eviction.Options{}).Run)
}

func together(ctx context.Context, parts ...func(context.Context)) {
	var running sync.WaitGroup
	for _, part := range parts {
		running.Go(func() { part(ctx) })
	}
	running.Wait()
}
