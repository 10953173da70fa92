// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package hook lets upstream's code, patched when its tests are built, hand over to its
// replacement. It imports no package that is patched.
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

// Made is a scheduler that replaces upstream's.
type Made interface {
	// Follow begins to follow the cluster, until the context ends, and returns when it is known.
	Follow(context.Context)
	// Run decides pods until the context ends. It follows the cluster if Follow was not called.
	Run(context.Context)
	// Waits reports whether a pod waits in the queue for what can help it, or is kept out of it.
	Waits(ctx context.Context, namespace, name string) bool
}

// The replacements of upstream's components; nil: upstream's own. The scheduler is made when
// upstream's is, follows the cluster when upstream's informers are synced, and runs when that runs:
// tests prepare their plugins in between, and count on a scheduler that knows the cluster when it
// begins to run.
var (
	NewScheduler  func(context.Context, Scheduler) Made
	RunNodeHealth func(context.Context, NodeHealth)
	RunEviction   func(context.Context, kubernetes.Interface)
)
