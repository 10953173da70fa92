// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FragmentationArgs are the arguments of Fragmentation. Like the arguments of upstream's plugins
// they are decoded in kubescheduler.config.k8s.io/v1.
type FragmentationArgs struct {
	metav1.TypeMeta `json:",inline"`

	// Resource is the extended resource provided by the devices. Default: nvidia.com/gpu.
	Resource v1.ResourceName `json:"resource,omitempty"`
	// Unit is the amount of Resource per device. A smaller request is for a share of one device;
	// any other request is for whole devices. Default: 1.
	Unit int64 `json:"unit,omitempty"`
	// Driver is a DRA driver with devices that count like the devices of the resource: they affect
	// the scores of nodes. Without Driver, ResourceClaims do not affect scores: the plugin only
	// chooses the devices for a claim on the selected node.
	Driver string `json:"driver,omitempty"`
	// Tasks are the expected workload. Without them, the plugin learns from scheduled pods.
	Tasks []FragmentationTask `json:"tasks,omitempty"`
	// HalfLife is the number of pods after which the weight of a learnt pod has halved. Default:
	// 16384.
	HalfLife int64 `json:"halfLife,omitempty"`
	// NearPercent is the weight of the capacity usable by the next pod, compared with the capacity
	// left over in the end. Lower values are better if pods are moved to make room for pending
	// pods. Default: 100.
	NearPercent int64 `json:"nearPercent,omitempty"`
}

// FragmentationTask is a kind of expected pods.
type FragmentationTask struct {
	// Requests of a pod. Only CPU, memory and the resource of the devices count.
	Requests v1.ResourceList `json:"requests"`
	// Weight is the frequency of the task, relative to the other tasks. Default: 1.
	Weight int64 `json:"weight,omitempty"`
	// NodeSelector and NodeAffinity limit the nodes of the task, like the node selector and the
	// required node affinity in the spec of a pod.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	NodeAffinity *v1.NodeSelector  `json:"nodeAffinity,omitempty"`
}

// DeepCopy copies the arguments.
func (a *FragmentationArgs) DeepCopy() *FragmentationArgs {
	other := *a
	other.Tasks = nil
	for _, t := range a.Tasks {
		selector := v1.PodSpec{NodeSelector: t.NodeSelector}
		t.Requests, t.NodeSelector, t.NodeAffinity = t.Requests.DeepCopy(), selector.DeepCopy().NodeSelector, t.NodeAffinity.DeepCopy()
		other.Tasks = append(other.Tasks, t)
	}
	return &other
}

// DeepCopyObject implements runtime.Object.
func (a *FragmentationArgs) DeepCopyObject() runtime.Object { return a.DeepCopy() }

// setFragmentationDefaults fills in zero and empty arguments. Zero is meaningless for every
// argument, so the defaults override no explicit choice.
func setFragmentationDefaults(a *FragmentationArgs) {
	a.Resource, a.Unit = cmp.Or(a.Resource, "nvidia.com/gpu"), cmp.Or(a.Unit, 1)
	a.HalfLife, a.NearPercent = cmp.Or(a.HalfLife, 1<<14), cmp.Or(a.NearPercent, 100)
	for i := range a.Tasks {
		a.Tasks[i].Weight = cmp.Or(a.Tasks[i].Weight, 1)
	}
}

// maxTasks bounds the kinds of pods distinguished, since the value of each node depends on all of
// them. maxTaskWeight bounds the frequency of each kind, so that the sum stays far below the limit
// of an int64.
const (
	maxTasks      = 512
	maxTaskWeight = 1 << 30
)

// validateFragmentation checks the arguments after defaulting. HalfLife must be at least 8, because
// weights fade in 8 steps per half-life.
func validateFragmentation(path *field.Path, a *FragmentationArgs) (list field.ErrorList) {
	list = append(list, metavalidation.ValidateLabelName(string(a.Resource), path.Child("resource"))...)
	if a.Unit < 1 {
		list = append(list, field.Invalid(path.Child("unit"), a.Unit, "must be at least 1"))
	}
	if a.Driver != "" {
		for _, message := range validation.IsDNS1123Subdomain(a.Driver) {
			list = append(list, field.Invalid(path.Child("driver"), a.Driver, message))
		}
	}

	if a.HalfLife < 8 {
		list = append(list, field.Invalid(path.Child("halfLife"), a.HalfLife, "must be at least 8"))
	}
	// A value of 0 selects the default, so 0 cannot be set.
	if a.NearPercent < 1 || a.NearPercent > 100 {
		list = append(list, field.Invalid(path.Child("nearPercent"), a.NearPercent, "not in valid range [1, 100]"))
	}

	if len(a.Tasks) > maxTasks {
		list = append(list, field.TooMany(path.Child("tasks"), len(a.Tasks), maxTasks))
	}
	for i := range a.Tasks {
		list = append(list, validateTask(path.Child("tasks").Index(i), &a.Tasks[i])...)
	}
	return list
}

// validateTask checks one kind of expected pods.
func validateTask(path *field.Path, t *FragmentationTask) (list field.ErrorList) {
	if t.Weight < 1 || t.Weight > maxTaskWeight {
		list = append(list, field.Invalid(path.Child("weight"), t.Weight, "not in valid range [1, 1073741824]"))
	}
	if len(t.Requests) == 0 {
		list = append(list, field.Required(path.Child("requests"), "must name what a pod requests"))
	}

	for name, quantity := range t.Requests {
		if quantity.Sign() < 0 {
			list = append(list, field.Invalid(path.Child("requests").Key(string(name)), quantity.String(), "must not be negative"))
		}
	}

	list = append(list, metavalidation.ValidateLabels(t.NodeSelector, path.Child("nodeSelector"))...)
	if t.NodeAffinity != nil {
		err := validateAddedAffinity(path.Child("nodeAffinity"),
			&v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: t.NodeAffinity})
		if err != nil {
			list = append(list, field.Invalid(path.Child("nodeAffinity"), "", err.Error()))
		}
	}

	return list
}
