// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// GuardName is the component's name in --controllers.
const GuardName = "eviction-guard"

// NewGuard returns a Mover that replaces pods whose evictions the webhook holds.
func NewGuard(client kubernetes.Interface, events *eventlog.Log, profiles []*plugins.Profile, options execute.GuardOptions) *Mover {
	options.Wall = wallTime
	m := newMover(client, GuardName, execute.NewGuard(options), rebalance.Options{Profiles: profiles}, true)
	m.kinds = append(m.kinds, kind{client.AppsV1().RESTClient(), "daemonsets",
		func() runtime.Object { return &appsv1.DaemonSetList{} }, false})
	m.report = func(ctx context.Context, action execute.Action) bool {
		a, ok := action.(execute.DrainProgress)
		if ok {
			reportGuard(ctx, events, a)
		}
		return ok
	}
	return m
}

// reportGuard counts and logs progress, and writes events about the pods.
func reportGuard(ctx context.Context, events *eventlog.Log, a execute.DrainProgress) {
	if a.Pod == nil || a.Pod.Name == "" {
		return
	}
	klog.FromContext(ctx).V(2).Info("Held eviction", "pod", klog.KRef(a.Pod.Namespace, a.Pod.Name), "result", a.Result, "message", a.Message)
	guarded.WithLabelValues(string(a.Result)).Inc()
	pod := v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.Pod.UID}
	switch a.Result {
	case execute.Raised:
		events.Add(pod, v1.EventTypeNormal, "EvictionHeld", "Starts a replacement before the eviction: "+a.Message)
	case execute.Replaced:
		events.Add(pod, v1.EventTypeNormal, "Replaced", "Leaves "+a.Pod.From+"; its replacement is ready")
	case execute.Restored:
		events.Add(pod, v1.EventTypeWarning, "ReplacementFailed", a.Message)
	}
}
