// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
	began := map[types.UID]time.Time{} // of the surges, by pod
	m.report = func(ctx context.Context, action execute.Action) bool {
		a, ok := action.(execute.DrainProgress)
		if ok {
			reportGuard(ctx, events, a, began)
		}
		return ok
	}
	return m
}

// reportGuard counts and logs progress, and writes events about the pods and their workloads.
func reportGuard(ctx context.Context, events *eventlog.Log, a execute.DrainProgress, began map[types.UID]time.Time) {
	if a.Pod == nil || a.Pod.Name == "" {
		return
	}
	klog.FromContext(ctx).V(2).Info("Held eviction", "pod", klog.KRef(a.Pod.Namespace, a.Pod.Name), "result", a.Result, "message", a.Message)
	guarded.WithLabelValues(string(a.Result)).Inc()
	write := func(kind, reason, message string) {
		pod := v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.Pod.UID}
		events.Add(pod, kind, reason, message)
		if workload, ok := scaledReference(a.Pod.Surge); ok {
			events.Add(workload, kind, reason, "Pod "+a.Pod.Name+": "+message)
		}
	}

	switch a.Result {
	case execute.Raised:
		began[a.Pod.UID] = time.Now()
		write(v1.EventTypeNormal, "EvictionHeld", "Starts a replacement before the eviction: "+a.Message)
	case execute.Replaced:
		write(v1.EventTypeNormal, "Replaced", "Leaves "+a.Pod.From+"; its replacement is ready")
	case execute.Restored:
		write(v1.EventTypeWarning, "ReplacementFailed", a.Message)
	}
	if at, ok := began[a.Pod.UID]; ok && (a.Result == execute.Replaced || a.Result == execute.Restored) {
		guardSeconds.WithLabelValues(string(a.Result)).Observe(time.Since(at).Seconds())
		delete(began, a.Pod.UID)
	}
}

// scaledReference refers to the object that a surge scales.
func scaledReference(s *rebalance.Surge) (ref v1.ObjectReference, ok bool) {
	switch {
	case s == nil:
		return ref, false
	case s.Through != nil:
		t := s.Through
		return v1.ObjectReference{APIVersion: t.APIVersion, Kind: t.Kind, Namespace: s.Namespace, Name: t.Name, UID: t.UID}, true
	}
	return v1.ObjectReference{APIVersion: "apps/v1", Kind: s.Kind, Namespace: s.Namespace, Name: s.Name, UID: s.UID}, true
}
