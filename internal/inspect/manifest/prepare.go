// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// These functions set the API server's defaults for the fields read by Berth, and then validate
// them.

// prepareNode makes all of a node's capacity allocatable if the manifest omits allocatable, like
// the API server's defaults.
func prepareNode(node *v1.Node) field.ErrorList {
	errs := rules.ValidateNode(node)
	if node.Status.Allocatable == nil {
		node.Status.Allocatable = maps.Clone(node.Status.Capacity)
	}
	return errs
}

// preparePod sets the defaults of a pod. Admission, which adds priority and overhead, follows when
// the pod is used.
func preparePod(pod *v1.Pod) field.ErrorList {
	admission.Default(pod)
	admission.DefaultPodResources(pod)
	pod.Status.Phase = cmp.Or(pod.Status.Phase, v1.PodPending)
	return rules.ValidatePod(pod)
}

// prepareNamespace adds the label with the namespace's name, used by namespace selectors.
func prepareNamespace(namespace *v1.Namespace) field.ErrorList {
	if namespace.Name != "" {
		metav1.SetMetaDataLabel(&namespace.ObjectMeta, v1.LabelMetadataName, namespace.Name)
	}
	return rules.ValidateNamespace(namespace)
}

// prepareVolume sets the defaults of a volume. Without a status, it sets the phase to Available or
// Bound, like the volume's controller.
func prepareVolume(volume *v1.PersistentVolume) field.ErrorList {
	rules.SetDefault(&volume.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
	volume.Spec.PersistentVolumeReclaimPolicy = cmp.Or(volume.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRetain)
	if volume.Status.Phase == "" {
		// A volume bound to a claim has the claim's UID; otherwise its controller would have set it
		// to available.
		volume.Status.Phase = v1.VolumeAvailable
		if volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.UID != "" {
			volume.Status.Phase = v1.VolumeBound
		}
	}
	errs := rules.ValidateMeta(&volume.ObjectMeta, false)
	// Check the parts read by the scheduler; leave the source of the volume to the API server.
	if affinity := volume.Spec.NodeAffinity; affinity != nil && affinity.Required != nil {
		errs = append(errs, rules.ValidateNodeSelector(affinity.Required, field.NewPath("spec", "nodeAffinity", "required"))...)
	}
	return append(errs, rules.ValidateAmounts(volume.Spec.Capacity, field.NewPath("spec", "capacity"))...)
}

// prepareClaim sets the defaults of a claim except for the storage class, which Read sets when all
// classes are known.
func prepareClaim(claim *v1.PersistentVolumeClaim) field.ErrorList {
	workload.CompleteClaim(claim)
	errs := rules.ValidateMeta(&claim.ObjectMeta, true)
	return append(errs, rules.ValidateAmounts(claim.Spec.Resources.Requests, field.NewPath("spec", "resources", "requests"))...)
}

// preparePriorityClass sets the default preemption policy.
func preparePriorityClass(class *schedulingv1.PriorityClass) field.ErrorList {
	rules.SetDefault(&class.PreemptionPolicy, v1.PreemptLowerPriority)
	return rules.ValidatePriorityClass(class)
}

// prepareStorageClass sets the defaults of a storage class. An unknown binding mode is a fault,
// because the scheduler would need to guess when to bind.
func prepareStorageClass(class *storagev1.StorageClass) field.ErrorList {
	rules.SetDefault(&class.ReclaimPolicy, v1.PersistentVolumeReclaimDelete)
	rules.SetDefault(&class.VolumeBindingMode, storagev1.VolumeBindingImmediate)
	errs := rules.ValidateMeta(&class.ObjectMeta, false)
	if mode := *class.VolumeBindingMode; mode != storagev1.VolumeBindingImmediate && mode != storagev1.VolumeBindingWaitForFirstConsumer {
		errs = append(errs, field.NotSupported(field.NewPath("volumeBindingMode"), mode,
			[]storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer}))
	}
	return errs
}

// prepareDriver sets the defaults of a CSI driver: it requires attachment, and publishes no
// capacities.
func prepareDriver(driver *storagev1.CSIDriver) field.ErrorList {
	rules.SetDefault(&driver.Spec.AttachRequired, true)
	rules.SetDefault(&driver.Spec.StorageCapacity, false)
	return rules.ValidateMeta(&driver.ObjectMeta, false)
}

// prepareResourceClaim sets the defaults of a device claim.
func prepareResourceClaim(claim *resourcev1.ResourceClaim) field.ErrorList {
	defaultRequests(&claim.Spec)
	return rules.ValidateMeta(&claim.ObjectMeta, true)
}

// prepareResourceClaimTemplate sets the defaults of a template's device claims.
func prepareResourceClaimTemplate(template *resourcev1.ResourceClaimTemplate) field.ErrorList {
	defaultRequests(&template.Spec.Spec)
	return rules.ValidateMeta(&template.ObjectMeta, true)
}

// defaultRequests sets the defaults of each request, and of each alternative of a request: a
// request without a count is for one device.
func defaultRequests(spec *resourcev1.ResourceClaimSpec) {
	count := func(mode *resourcev1.DeviceAllocationMode, count *int64) {
		// Use the API server's defaults.
		*mode = cmp.Or(*mode, resourcev1.DeviceAllocationModeExactCount)
		if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}

	for i := range spec.Devices.Requests {
		request := &spec.Devices.Requests[i]
		if request.Exactly != nil {
			count(&request.Exactly.AllocationMode, &request.Exactly.Count)
		}
		// In a prioritised list, the first allocatable alternative is taken.
		for j := range request.FirstAvailable {
			count(&request.FirstAvailable[j].AllocationMode, &request.FirstAvailable[j].Count)
		}
	}
}

// prepareDeployment checks a Deployment. Like the functions for the workloads below, it leaves the
// number of replicas unset: see Set.defaultReplicas.
func prepareDeployment(d *appsv1.Deployment) field.ErrorList {
	errs := checkWorkload(&d.ObjectMeta, d.Spec.Replicas, d.Spec.Selector, &d.Spec.Template)
	none := func(n *intstr.IntOrString) bool {
		return n != nil && (n.Type == intstr.Int && n.IntVal == 0 || strings.TrimLeft(n.StrVal, "0") == "%")
	}
	if r := d.Spec.Strategy.RollingUpdate; r != nil && none(r.MaxUnavailable) && none(r.MaxSurge) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "strategy", "rollingUpdate", "maxUnavailable"), *r.MaxUnavailable,
			"may not be 0 when `maxSurge` is 0"))
	}
	return errs
}

func prepareReplicaSet(rs *appsv1.ReplicaSet) field.ErrorList {
	return checkWorkload(&rs.ObjectMeta, rs.Spec.Replicas, rs.Spec.Selector, &rs.Spec.Template)
}

func prepareStatefulSet(set *appsv1.StatefulSet) field.ErrorList {
	set.Spec.PodManagementPolicy = cmp.Or(set.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	for i := range set.Spec.VolumeClaimTemplates {
		claim := &set.Spec.VolumeClaimTemplates[i]
		claim.TypeMeta = metav1.TypeMeta{} // the API server ignores this field
		workload.CompleteClaim(claim)
	}
	return checkWorkload(&set.ObjectMeta, set.Spec.Replicas, set.Spec.Selector, &set.Spec.Template)
}

func prepareDaemonSet(set *appsv1.DaemonSet) field.ErrorList {
	return checkWorkload(&set.ObjectMeta, nil, set.Spec.Selector, &set.Spec.Template)
}

// prepareReplicationController defaults the selector to the template's labels, like the API server.
func prepareReplicationController(rc *v1.ReplicationController) field.ErrorList {
	// Like the API server, require a template.
	if rc.Spec.Template == nil {
		return field.ErrorList{field.Required(field.NewPath("spec", "template"), "")}
	}
	if len(rc.Spec.Selector) == 0 {
		rc.Spec.Selector = rc.Spec.Template.Labels
	}
	return checkWorkload(&rc.ObjectMeta, rc.Spec.Replicas, &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}, rc.Spec.Template)
}

// prepareJob sets the defaults of a Job. Without either number, it has one completion. With only a
// parallelism, it is a work queue that ends with any success.
func prepareJob(job *batchv1.Job) field.ErrorList {
	// Set the defaults only if both are missing: with only a parallelism, completions stay unset.
	if job.Spec.Parallelism == nil && job.Spec.Completions == nil {
		rules.SetDefault(&job.Spec.Completions, 1)
	}
	rules.SetDefault(&job.Spec.Parallelism, 1)
	rules.SetDefault(&job.Spec.CompletionMode, batchv1.NonIndexedCompletion)
	spec := field.NewPath("spec")
	pod := &v1.Pod{Spec: job.Spec.Template.Spec}
	admission.Default(pod)
	job.Spec.Template.Spec = pod.Spec
	errs := rules.ValidateMeta(&job.ObjectMeta, true)
	errs = append(errs, countOfPods(job.Spec.Parallelism, spec.Child("parallelism"))...)
	if job.Spec.Completions != nil {
		errs = append(errs, validation.ValidateNonnegativeField(int64(*job.Spec.Completions), spec.Child("completions"))...)
	}
	if *job.Spec.CompletionMode == batchv1.IndexedCompletion && job.Spec.Completions == nil {
		errs = append(errs, field.Required(spec.Child("completions"), "when completion mode is Indexed"))
	}
	return append(errs, checkTemplate(&job.Spec.Template, spec.Child("template"))...)
}

// checkWorkload checks the parts common to all workloads: their number of replicas (nil for kinds
// without that field), a selector that matches the template's labels, and the template.
func checkWorkload(meta *metav1.ObjectMeta, replicas *int32, selector *metav1.LabelSelector, template *v1.PodTemplateSpec) field.ErrorList {
	spec := field.NewPath("spec")
	errs := rules.ValidateMeta(meta, true)
	errs = append(errs, countOfPods(replicas, spec.Child("replicas"))...)
	if selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		errs = append(errs, field.Required(spec.Child("selector"), ""))
	} else if s, err := rules.ReadSelector(selector); err != nil {
		errs = append(errs, field.Invalid(spec.Child("selector"), selector, err.Error()))
	} else if !s.Matches(labels.Set(template.Labels)) {
		errs = append(errs, field.Invalid(spec.Child("template", "metadata", "labels"), template.Labels,
			"`selector` does not match template `labels`"))
	}
	if policy := template.Spec.RestartPolicy; policy == v1.RestartPolicyOnFailure || policy == v1.RestartPolicyNever {
		errs = append(errs, field.NotSupported(spec.Child("template", "spec", "restartPolicy"), policy, []v1.RestartPolicy{v1.RestartPolicyAlways}))
	}
	return append(errs, checkTemplate(template, spec.Child("template"))...)
}

// checkTemplate validates the template's future pods with their defaults. It does not modify the
// template, because a later kubectl apply compares it with the existing template.
func checkTemplate(template *v1.PodTemplateSpec, path *field.Path) field.ErrorList {
	pod := &v1.Pod{Spec: *template.Spec.DeepCopy()}
	admission.Default(pod)
	return rules.ValidatePodSpec(&pod.Spec, path.Child("spec"))
}

// countOfPods checks a number of pods. The upper bound is Berth's, not the API server's.
func countOfPods(value *int32, path *field.Path) field.ErrorList {
	switch {
	case value == nil:
		return nil
	case *value < 0:
		return field.ErrorList{field.Invalid(path, *value, "must be greater than or equal to 0")}
	// This checks each object separately; withinLimit checks all of them together.
	case *value > workload.Most:
		return field.ErrorList{field.Invalid(path, *value, fmt.Sprintf("must be at most %d to be simulated", workload.Most))}
	}
	return nil
}
