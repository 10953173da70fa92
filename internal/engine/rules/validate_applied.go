// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"math"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// ValidateApplied checks, like the API server after defaulting, the fields of an object that no
// scheduler reads and that manifests often get wrong: images, volume mounts, probes, strategies,
// the restart policy of Jobs, the size of claims. Reading a manifest does not require them, because
// a manifest for a simulation may omit them. test/words compares the errors with upstream's.
func ValidateApplied(object metav1.Object) field.ErrorList {
	spec := field.NewPath("spec")
	switch o := object.(type) {
	case *v1.Pod:
		return validateRun(&o.Spec, nil, spec)
	case *v1.ReplicationController:
		if o.Spec.Template == nil {
			return nil
		}
		return append(validateLasting(&o.Spec.Template.Spec, nil, "ReplicaSet", spec), nonNegative(o.Spec.MinReadySeconds, spec.Child("minReadySeconds"))...)
	case *appsv1.ReplicaSet:
		return append(validateLasting(&o.Spec.Template.Spec, nil, "ReplicaSet", spec), nonNegative(o.Spec.MinReadySeconds, spec.Child("minReadySeconds"))...)
	case *appsv1.Deployment:
		return validateDeployment(&o.Spec, spec)
	case *appsv1.StatefulSet:
		return validateStatefulSet(&o.Spec, spec)
	case *appsv1.DaemonSet:
		return validateDaemonSet(&o.Spec, spec)

	case *batchv1.Job:
		return validateJob(&o.Spec, spec)
	case *v1.PersistentVolumeClaim:
		return validateClaim(&o.Spec, spec)
	case *v1.ResourceQuota:
		return ValidateAmounts(o.Spec.Hard, spec.Child("hard"))
	case *v1.LimitRange:
		return validateLimitRange(o.Spec.Limits, spec.Child("limits"))
	case *storagev1.StorageClass:
		var errs field.ErrorList
		if o.Provisioner == "" {
			errs = append(errs, field.Required(field.NewPath("provisioner"), ""))
		}
		errs = append(errs, oneOf(field.NewPath("reclaimPolicy"), ptr.Deref(o.ReclaimPolicy, ""),
			v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain)...)
		return append(errs, oneOf(field.NewPath("volumeBindingMode"), ptr.Deref(o.VolumeBindingMode, ""),
			storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)...)
	}
	return nil
}

func validateDeployment(d *appsv1.DeploymentSpec, spec *field.Path) field.ErrorList {
	errs := validateLasting(&d.Template.Spec, nil, "ReplicaSet", spec)
	strategy := spec.Child("strategy")
	if d.Strategy.Type == appsv1.RecreateDeploymentStrategyType && d.Strategy.RollingUpdate != nil {
		errs = append(errs, field.Forbidden(strategy.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'"))
	}
	errs = append(errs, oneOf(strategy, d.Strategy.Type, appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType)...)

	errs = append(errs, nonNegative(d.MinReadySeconds, spec.Child("minReadySeconds"))...)
	if deadline := ptr.Deref(d.ProgressDeadlineSeconds, 600); deadline <= d.MinReadySeconds {
		errs = append(errs, field.Invalid(spec.Child("progressDeadlineSeconds"), deadline, "must be greater than minReadySeconds"))
	}
	return errs
}

func validateStatefulSet(s *appsv1.StatefulSetSpec, spec *field.Path) field.ErrorList {
	claims := Mapped(s.VolumeClaimTemplates, func(c v1.PersistentVolumeClaim) string { return c.Name })
	errs := validateLasting(&s.Template.Spec, claims, "StatefulSet", spec)
	switch s.PodManagementPolicy {
	case "", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs, field.Invalid(spec.Child("podManagementPolicy"), s.PodManagementPolicy, "must be 'OrderedReady' or 'Parallel'"))
	}

	switch s.UpdateStrategy.Type {
	case "", appsv1.RollingUpdateStatefulSetStrategyType:
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.UpdateStrategy.RollingUpdate != nil {
			errs = append(errs, field.Invalid(spec.Child("updateStrategy", "rollingUpdate"), s.UpdateStrategy.RollingUpdate,
				"only allowed for updateStrategy 'RollingUpdate'"))
		}
	default:
		errs = append(errs, field.Invalid(spec.Child("updateStrategy"), s.UpdateStrategy, "must be 'RollingUpdate' or 'OnDelete'"))
	}
	return append(errs, nonNegative(s.MinReadySeconds, spec.Child("minReadySeconds"))...)
}

func validateDaemonSet(d *appsv1.DaemonSetSpec, spec *field.Path) field.ErrorList {
	errs := validateLasting(&d.Template.Spec, nil, "DaemonSet", spec)
	errs = append(errs, oneOf(spec.Child("updateStrategy"), d.UpdateStrategy.Type,
		appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType)...)
	return append(errs, nonNegative(d.MinReadySeconds, spec.Child("minReadySeconds"))...)
}

func validateJob(j *batchv1.JobSpec, spec *field.Path) field.ErrorList {
	errs := validateRun(&j.Template.Spec, nil, spec.Child("template", "spec"))
	if policy := j.Template.Spec.RestartPolicy; policy == "" || policy == v1.RestartPolicyAlways {
		errs = append(errs, field.Required(spec.Child("template", "spec", "restartPolicy"),
			fmt.Sprintf("valid values: %q, %q", v1.RestartPolicyOnFailure, v1.RestartPolicyNever)))
	}
	if s := j.Selector; s != nil && !ptr.Deref(j.ManualSelector, false) && s.MatchLabels[batchv1.ControllerUidLabel] == "" {
		errs = append(errs, field.Invalid(spec.Child("selector"), s, "`selector` not auto-generated"))
	}
	limits := map[string]*int32{
		"backoffLimit": j.BackoffLimit, "backoffLimitPerIndex": j.BackoffLimitPerIndex, "maxFailedIndexes": j.MaxFailedIndexes,
		"ttlSecondsAfterFinished": j.TTLSecondsAfterFinished,
	}

	for _, name := range sortedKeys(limits) {
		errs = append(errs, nonNegative(ptr.Deref(limits[name], 0), spec.Child(name))...)
	}
	errs = append(errs, nonNegative(ptr.Deref(j.ActiveDeadlineSeconds, 0), spec.Child("activeDeadlineSeconds"))...)
	mode := ptr.Deref(j.CompletionMode, batchv1.NonIndexedCompletion)
	errs = append(errs, oneOf(spec.Child("completionMode"), mode, batchv1.IndexedCompletion, batchv1.NonIndexedCompletion)...)
	if mode == batchv1.NonIndexedCompletion {
		for _, name := range []string{"backoffLimitPerIndex", "maxFailedIndexes"} {
			if value := limits[name]; value != nil {
				errs = append(errs, field.Invalid(spec.Child(name), *value, "requires indexed completion mode"))
			}
		}
	}
	return errs
}

func validateClaim(c *v1.PersistentVolumeClaimSpec, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	others := []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOnce}
	if len(c.AccessModes) == 0 {
		errs = append(errs, field.Required(spec.Child("accessModes"), "at least 1 access mode is required"))
	}
	for _, mode := range c.AccessModes {
		errs = append(errs, oneOf(spec.Child("accessModes"), mode, append(others, v1.ReadWriteOncePod)...)...)
	}

	if slices.Contains(c.AccessModes, v1.ReadWriteOncePod) &&
		slices.ContainsFunc(c.AccessModes, func(m v1.PersistentVolumeAccessMode) bool { return slices.Contains(others, m) }) {
		errs = append(errs, field.Forbidden(spec.Child("accessModes"), "may not use ReadWriteOncePod with other access modes"))
	}
	size := spec.Child("resources").Key(string(v1.ResourceStorage))
	if storage, ok := c.Resources.Requests[v1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(size, ""))
	} else if storage.Sign() <= 0 {
		errs = append(errs, field.Invalid(size, storage.String(), "must be greater than zero"))
	}
	return append(errs, oneOf(spec.Child("volumeMode"), ptr.Deref(c.VolumeMode, ""), v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem)...)
}

// validateLimitRange checks that the amounts of each limit are in order: min, default request,
// default, max.
func validateLimitRange(limits []v1.LimitRangeItem, path *field.Path) (errs field.ErrorList) {
	for i := range limits {
		l := &limits[i]
		for _, pair := range []struct {
			low, high   v1.ResourceList
			at          string
			first, then string
		}{
			{l.Min, l.Max, "min", "min value", "max value"},
			{l.Min, l.DefaultRequest, "defaultRequest", "min value", "default request value"},
			{l.DefaultRequest, l.Max, "defaultRequest", "default request value", "max value"},
			{l.DefaultRequest, l.Default, "defaultRequest", "default request value", "default limit value"},
			{l.Min, l.Default, "default", "min value", "default value"},
			{l.Default, l.Max, "default", "default value", "max value"},
		} {
			for _, name := range sortedKeys(pair.low) {
				low := pair.low[name]

				if high, both := pair.high[name]; both && low.Cmp(high) > 0 {
					errs = append(errs, field.Invalid(path.Index(i).Child(pair.at).Key(string(name)), low.String(),
						fmt.Sprintf("%s %s is greater than %s %s", pair.first, low.String(), pair.then, high.String())))
				}
			}
		}
	}
	return errs
}

// validateLasting checks the template of a workload whose pods never end. claims are the names of
// the volumes that the workload adds.
func validateLasting(template *v1.PodSpec, claims []string, kind string, spec *field.Path) field.ErrorList {
	path := spec.Child("template", "spec")
	errs := validateRun(template, claims, path)
	if template.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported"))
	}
	return errs
}

// validateRun checks what the kubelet needs to run a pod. added names the volumes added later.
func validateRun(spec *v1.PodSpec, added []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	volumes := map[string]bool{}
	for i := range spec.Volumes {
		volume, at := &spec.Volumes[i], path.Child("volumes").Index(i)
		if slices.Contains(added, volume.Name) {
			continue // replaced by the added volume
		}
		var faults field.ErrorList
		if countSet(reflect.ValueOf(volume.VolumeSource)) > 1 {
			faults = append(faults, field.Forbidden(at, "may not specify more than 1 volume type"))
		}
		faults = append(faults, requiredErrors(at.Child("name"), volume.Name, validation.IsDNS1123Label(volume.Name))...)
		if volumes[volume.Name] {
			faults = append(faults, field.Duplicate(at.Child("name"), volume.Name))
		}
		volumes[volume.Name] = volumes[volume.Name] || len(faults) == 0
		errs = append(errs, faults...)
	}
	for _, name := range added {
		volumes[name] = true
	}

	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		errs = append(append(errs, validateContainer(c, volumes, at)...), validateProbes(c, at)...)
	}
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], path.Child("initContainers").Index(i)
		errs = append(errs, validateContainer(c, volumes, at)...)
		if ptr.Deref(c.RestartPolicy, "") == v1.ContainerRestartPolicyAlways {
			errs = append(errs, validateProbes(c, at)...)
			continue
		}
		for _, p := range probesOf(c) {
			if p.probe != nil {
				errs = append(errs, field.Forbidden(at.Child(p.name), "may not be set for init containers without restartPolicy=Always"))
			}
		}
	}
	if d := spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	return append(errs, oneOf(path.Child("dnsPolicy"), spec.DNSPolicy,
		v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet, v1.DNSDefault, v1.DNSNone)...)
}

// validateContainer checks the fields shared by all containers. volumes are the pod's volumes.
func validateContainer(c *v1.Container, volumes map[string]bool, path *field.Path) (errs field.ErrorList) {
	if c.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	if c.Image == "" {
		errs = append(errs, field.Required(path.Child("image"), ""))
	}
	errs = append(errs, oneOf(path.Child("imagePullPolicy"), c.ImagePullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	for i := range c.Env {
		at, name := path.Child("env").Index(i).Child("name"), c.Env[i].Name
		errs = append(errs, requiredErrors(at, name, validation.IsRelaxedEnvVarName(name))...)
	}

	mounted := map[string]bool{}
	for i := range c.VolumeMounts {
		mount, at := &c.VolumeMounts[i], path.Child("volumeMounts").Index(i)
		if mount.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if !volumes[mount.Name] {
			errs = append(errs, field.NotFound(at.Child("name"), mount.Name))
		}
		if mount.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		}
		if mounted[mount.MountPath] {
			errs = append(errs, field.Invalid(at.Child("mountPath"), mount.MountPath, "must be unique"))
		}
		mounted[mount.MountPath] = true
	}
	return errs
}

// namedProbe is a probe with its field name; nil if unset.
type namedProbe struct {
	name  string
	probe *v1.Probe
}

func probesOf(c *v1.Container) []namedProbe {
	return []namedProbe{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}}
}

func validateProbes(c *v1.Container, path *field.Path) (errs field.ErrorList) {
	for _, p := range probesOf(c) {
		if p.probe == nil {
			continue
		}
		at := path.Child(p.name)
		switch handlers := countSet(reflect.ValueOf(p.probe.ProbeHandler)); {
		case handlers == 0:
			errs = append(errs, field.Required(at, "must specify a handler type"))
		case handlers > 1:
			errs = append(errs, field.Forbidden(at, "may not specify more than 1 handler type"))
		case p.probe.HTTPGet != nil:
			errs = append(errs, validatePort(p.probe.HTTPGet.Port, at.Child("httpGet", "port"))...)
		case p.probe.TCPSocket != nil:
			errs = append(errs, validatePort(p.probe.TCPSocket.Port, at.Child("tcpSocket", "port"))...)
		}

		if threshold := p.probe.SuccessThreshold; p.name != "readinessProbe" && threshold != 0 && threshold != 1 {
			errs = append(errs, field.Invalid(at.Child("successThreshold"), threshold, "must be 1"))
		}
		errs = append(errs, nonNegative(p.probe.InitialDelaySeconds, at.Child("initialDelaySeconds"))...)
		errs = append(errs, nonNegative(p.probe.TimeoutSeconds, at.Child("timeoutSeconds"))...)
		errs = append(errs, nonNegative(p.probe.PeriodSeconds, at.Child("periodSeconds"))...)
		errs = append(errs, nonNegative(p.probe.FailureThreshold, at.Child("failureThreshold"))...)
	}
	return errs
}

func validatePort(port intstr.IntOrString, path *field.Path) field.ErrorList {
	if port.Type == intstr.String {
		return invalidErrors(path, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
	return invalidErrors(path, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
}

// countSet returns the number of fields set in a struct of pointers.
func countSet(v reflect.Value) (n int) {
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			n++
		}
	}
	return n
}

func nonNegative[T int32 | int64](value T, path *field.Path) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(int64(value), path)
}

// oneOf checks an enumeration. An empty value has a default. Messages list the supported values in
// the given order.
func oneOf[T ~string](path *field.Path, value T, supported ...T) field.ErrorList {
	if value == "" || slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, supported)}
}
