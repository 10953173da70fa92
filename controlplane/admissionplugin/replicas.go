// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"context"
	"fmt"

	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
)

// ReplicasName is the name of the plugin for workloads.
const ReplicasName = "BerthReplicas"

// mostReplicas is the maximum number of pods of a workload. Controllers allocate memory in
// proportion to the requested number, regardless of any quota. For 2,000,000,000 replicas, the
// StatefulSet controller would allocate 30 GB in the API server's process. The scalability goal of
// Kubernetes is 150,000 pods per cluster.
const mostReplicas = 100_000

// replicas rejects workloads that request more than mostReplicas pods. It reads nothing but the
// object, so it never delays a request.
type replicas struct{ *apiserver.Handler }

var _ apiserver.ValidationInterface = &replicas{}

// NewReplicas returns the plugin for workloads.
func NewReplicas() apiserver.Interface {
	return &replicas{apiserver.NewHandler(apiserver.Create, apiserver.Update)}
}

// Validate implements apiserver.ValidationInterface. A workload already stored with too many
// replicas may still be changed in other ways, for example to remove a finalizer.
func (p *replicas) Validate(_ context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	// Status reports existing pods and requests none.
	if a.GetSubresource() != "" && a.GetSubresource() != "scale" {
		return nil
	}
	wanted := replicasOf(a.GetObject())
	if wanted <= mostReplicas || a.GetOldObject() != nil && wanted <= replicasOf(a.GetOldObject()) {
		return nil
	}
	return apiserver.NewForbidden(a, fmt.Errorf("%d pods are too many: must be at most %d", wanted, mostReplicas))
}

// replicasOf returns the number of pods a workload requests concurrently; 0 for other objects. For
// jobs it is their parallelism: a job may run any number of pods one after the other.
func replicasOf(object any) int32 {
	switch o := object.(type) {
	case *apps.Deployment:
		return o.Spec.Replicas
	case *apps.ReplicaSet:
		return o.Spec.Replicas
	case *apps.StatefulSet:
		return o.Spec.Replicas
	case *core.ReplicationController:
		return ptr.Deref(o.Spec.Replicas, 0)
	case *batch.Job:
		return ptr.Deref(o.Spec.Parallelism, 0)
	case *batch.CronJob:
		return ptr.Deref(o.Spec.JobTemplate.Spec.Parallelism, 0)
	case *autoscaling.Scale:
		return o.Spec.Replicas
	}

	return 0
}
