// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package hook contains the variables by which upstream's patched code calls its replacements. To
// avoid import cycles, it does not import patched packages.
package hook

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// Scheduler holds the parameters of a scheduler.
type Scheduler struct {
	Client                             kubernetes.Interface
	KubeConfig                         *rest.Config
	Profiles                           []config.KubeSchedulerProfile
	Extenders                          []config.Extender
	Plugins                            map[string]func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error)
	FirstBackoff, LastBackoff, MaxWait time.Duration
	PodsToActivate                     func() fwk.StateData
}

// NodeHealth holds the parameters of a node-lifecycle controller.
type NodeHealth struct {
	Client                                                kubernetes.Interface
	MonitorPeriod, MonitorGracePeriod, StartupGracePeriod time.Duration
	EvictionRate, SecondaryRate, UnhealthyZone            float32
	LargeCluster                                          int32
}

// Made is a scheduler that replaces an upstream scheduler.
type Made interface {
	// Follow starts following the cluster, until the context ends, and returns when the caches have
	// synced.
	Follow(context.Context)
	// Run decides pods until the context ends. It follows the cluster if Follow was not called.
	Run(context.Context)
	// Waits reports whether a pod is unschedulable and waits for an event, or is gated.
	Waits(ctx context.Context, namespace, name string) bool
	// Resizes reports whether a pod with a node is in the queue, and the number of its attempts.
	Resizes(ctx context.Context, namespace, name string) (attempts int, queued bool)
}

// These variables hold the replacements of upstream's components. If a variable is nil, upstream's
// component runs. Berth's scheduler is created together with upstream's scheduler. It follows the
// cluster after upstream's informers have synced, and makes decisions when upstream's scheduler
// would. Between these steps, tests prepare their plugins. They rely on synced caches when the
// scheduler begins to run.
var (
	NewScheduler  func(context.Context, Scheduler) Made
	RunNodeHealth func(context.Context, NodeHealth)
	RunEviction   func(context.Context, kubernetes.Interface)
)
