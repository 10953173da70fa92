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

// mostReplicas is how many pods a workload may want. Controllers allocate by the number that is
// written, whatever a quota allows: the StatefulSet controller takes 30 GB for 2,000,000,000, in
// the process of the API server. The scalability goals of Kubernetes are 150,000 pods in all.
const mostReplicas = 100_000

// replicas refuses workloads that want more pods than any cluster has. It looks at nothing but the
// object, and so never keeps a request waiting.
type replicas struct{ *apiserver.Handler }

var _ apiserver.ValidationInterface = &replicas{}

// NewReplicas returns the plugin for workloads.
func NewReplicas() apiserver.Interface {
	return &replicas{apiserver.NewHandler(apiserver.Create, apiserver.Update)}
}

// Validate implements apiserver.ValidationInterface. A workload that has been
// stored with as many may be changed otherwise, as by removing a finalizer.
func (p *replicas) Validate(_ context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	// Status reports what is there, and wants nothing.
	if a.GetSubresource() != "" && a.GetSubresource() != "scale" {
		return nil
	}
	wanted := replicasOf(a.GetObject())
	if wanted <= mostReplicas || a.GetOldObject() != nil && wanted <= replicasOf(a.GetOldObject()) {
		return nil
	}
	return apiserver.NewForbidden(a, fmt.Errorf("%d pods are too many: must be at most %d", wanted, mostReplicas))
}

// replicasOf is how many pods a workload wants at once; 0 for other objects. Of jobs it is their
// parallelism: a job may want any number of pods one after the other.
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
