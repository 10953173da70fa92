// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/engine/groups"
)

// Object is an API object of any kind.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kind is a kind writable by a tenant. New returns an empty object of it.
type Kind struct {
	Name string
	New  func() Object
}

// Kinds lists the kinds that a tenant may write with the ClusterRole edit, and that the scheduler,
// the controllers or the commands about recordings read. Only administrators may write nodes,
// volumes and classes.
var Kinds = []Kind{
	{"Pod", func() Object { return &v1.Pod{} }},
	{"PersistentVolumeClaim", func() Object { return &v1.PersistentVolumeClaim{} }},
	{"PodDisruptionBudget", func() Object { return &policyv1.PodDisruptionBudget{} }},
	{"ResourceClaim", func() Object { return &resourcev1.ResourceClaim{} }},
	{"ResourceClaimTemplate", func() Object { return &resourcev1.ResourceClaimTemplate{} }},
	{"Service", func() Object { return &v1.Service{} }},
	{"ReplicationController", func() Object { return &v1.ReplicationController{} }},
	{"ReplicaSet", func() Object { return &appsv1.ReplicaSet{} }},
	{"StatefulSet", func() Object { return &appsv1.StatefulSet{} }},
	{"Deployment", func() Object { return &appsv1.Deployment{} }},
	{"DaemonSet", func() Object { return &appsv1.DaemonSet{} }},
	{"Job", func() Object { return &batchv1.Job{} }},
	{"CronJob", func() Object { return &batchv1.CronJob{} }},
	{"Lease", func() Object { return &coordinationv1.Lease{} }},
	{"PodGroup", func() Object { return &groups.PodGroup{} }},
	{"CompositePodGroup", func() Object { return &groups.CompositePodGroup{} }},
}
