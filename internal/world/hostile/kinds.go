// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

// words holds the values of types with few valid values. With any other value, readers skip the
// rest of the object, so it would not be tested. A type without an entry gets any text.
var words = map[reflect.Type][]string{
	reflect.TypeFor[metav1.LabelSelectorOperator]():            {"In", "NotIn", "Exists", "DoesNotExist"},
	reflect.TypeFor[v1.NodeSelectorOperator]():                 {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"},
	reflect.TypeFor[v1.TolerationOperator]():                   {"Exists", "Equal"},
	reflect.TypeFor[v1.TaintEffect]():                          {"NoSchedule", "NoExecute", "PreferNoSchedule", ""},
	reflect.TypeFor[v1.UnsatisfiableConstraintAction]():        {"DoNotSchedule", "ScheduleAnyway"},
	reflect.TypeFor[v1.NodeInclusionPolicy]():                  {"Honor", "Ignore"},
	reflect.TypeFor[v1.Protocol]():                             {"TCP", "UDP", "SCTP"},
	reflect.TypeFor[v1.PersistentVolumeAccessMode]():           {"ReadWriteOnce", "ReadWriteOncePod"},
	reflect.TypeFor[v1.PersistentVolumeMode]():                 {"Filesystem"},
	reflect.TypeFor[resourcev1.DeviceAllocationMode]():         {"ExactCount", "All"},
	reflect.TypeFor[v1.ContainerRestartPolicy]():               {"Always"},
	reflect.TypeFor[v1.RestartPolicy]():                        {"Always"},
	reflect.TypeFor[v1.DNSPolicy]():                            {"Default"},
	reflect.TypeFor[v1.PreemptionPolicy]():                     {"PreemptLowerPriority", "Never"},
	reflect.TypeFor[v1.PodFSGroupChangePolicy]():               {"Always"},
	reflect.TypeFor[policyv1.UnhealthyPodEvictionPolicyType](): {"AlwaysAllow", "IfHealthyBudget"},
	reflect.TypeFor[batchv1.ConcurrencyPolicy]():               {"Allow"},
}

// byField holds the values of fields that refer to the cluster's objects, by the field's Go name.
// With other values, the terms would match nothing and cost nothing.
var byField = map[string][]string{
	"TopologyKey":      {v1.LabelHostname, v1.LabelTopologyZone, "k0", "k1", "k2", "k18"},
	"StorageClassName": {"made", "local"},
	"DeviceClassName":  {"gpu"},
	"SchedulerName":    {v1.DefaultSchedulerName},
	"GenerateName":     {""},
	"VolumeName":       {""},
	"APIVersion":       {"apps/v1"},
	"Kind":             {"ReplicaSet", "StatefulSet"},
	"Expression":       {`device.driver == "gpu.example.com"`, `quantity("1e60000000").isGreaterThan(quantity("1"))`},
}

// referring lists the fields that name another object of the tenant. Three times out of four they
// get the name of an object that may exist.
var referring = map[string]bool{"ClaimName": true, "ResourceClaimName": true, "ResourceClaimTemplateName": true, "PodGroupName": true}

// mostNames is the maximum number of requests named by a constraint or a configuration of a claim.
var mostNames = map[reflect.Type]int{
	reflect.TypeFor[resourcev1.DeviceConstraint]():         32,
	reflect.TypeFor[resourcev1.DeviceClaimConfiguration](): 32,
}

// namesType is the type of a list of names.
var namesType = reflect.TypeFor[[]string]()

// mostItems is the maximum length of lists and maps bounded by the API.
var mostItems = map[reflect.Type]int{
	// No two constraints may have the same key and action, and byField has six keys.
	reflect.TypeFor[[]v1.TopologySpreadConstraint]():         12,
	reflect.TypeFor[[]resourcev1.DeviceRequest]():            32,
	reflect.TypeFor[[]resourcev1.DeviceSubRequest]():         8,
	reflect.TypeFor[[]resourcev1.DeviceSelector]():           32,
	reflect.TypeFor[[]resourcev1.DeviceConstraint]():         32,
	reflect.TypeFor[[]resourcev1.DeviceClaimConfiguration](): 32,
	reflect.TypeFor[[]resourcev1.DeviceToleration]():         16,
}

// LongPods returns pods of 10,000 containers, about the maximum for an object: a pod with only
// requests and limits; pods with a unique image, resource or host port in each container; a pod
// with 1,500 unique resources in each of ten containers; and a pod with sidecars. Unique texts
// begin with the prefix. A generator, which grows one field at a time, does not create such pods.
func LongPods(prefix string) (pods []*v1.Pod) {
	const containers, many, each = 10_000, 10, 1500
	one, always := resource.MustParse("1"), v1.ContainerRestartPolicyAlways
	own := func(n int) v1.ResourceName { return v1.ResourceName(fmt.Sprint("e.io/", prefix, n)) }

	for i, fill := range []func(c *v1.Container, n int){
		func(c *v1.Container, _ int) { c.Resources.Limits = c.Resources.Requests },
		func(c *v1.Container, n int) { c.Image = fmt.Sprint(prefix, n) },
		func(c *v1.Container, n int) {
			c.Resources.Requests = v1.ResourceList{own(n): one}
			c.Resources.Limits = c.Resources.Requests
		},
		func(c *v1.Container, n int) {
			c.Resources.Requests = v1.ResourceList{}
			for k := range each {
				if n < many {
					c.Resources.Requests[own(n*each+k)] = one
				}
			}
			c.Resources.Limits = c.Resources.Requests
		},
		func(c *v1.Container, n int) {
			c.Ports = []v1.ContainerPort{{ContainerPort: int32(1 + n), HostPort: int32(1 + n)}}
		},
		func(c *v1.Container, n int) {
			if n > 0 {
				c.RestartPolicy = &always
			}
		},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: fmt.Sprint("long-", i)}}
		list := make([]v1.Container, containers)
		for n := range list {
			// Set requests of two resources, which every filter for room adds up.
			requests := v1.ResourceList{v1.ResourceCPU: resource.Quantity{}, v1.ResourceMemory: one}
			list[n] = v1.Container{Name: fmt.Sprint("c", n), Image: "i", Resources: v1.ResourceRequirements{Requests: requests}}
			fill(&list[n], n)
		}
		// Sidecars are init containers that are always restarted.
		if pod.Spec.Containers = list; list[1].RestartPolicy != nil {
			pod.Spec.Containers, pod.Spec.InitContainers = list[:1], list[1:]
		}
		pods = append(pods, pod)
	}
	return pods
}
