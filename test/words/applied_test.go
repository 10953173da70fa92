// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// podMistakes are mistakes in the fields of a pod that no scheduler reads.
var podMistakes = []func(s *v1.PodSpec){
	func(s *v1.PodSpec) { s.Containers[0].Image = "" },
	func(s *v1.PodSpec) { s.Containers[0].Name = "" },
	func(s *v1.PodSpec) { s.Containers[0].ImagePullPolicy = "Sometimes" },
	func(s *v1.PodSpec) {
		s.Containers[0].Env = []v1.EnvVar{{Name: "a=b"}, {Value: "no name"}, {Name: "1 a"}}
	},
	func(s *v1.PodSpec) {
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, v1.VolumeMount{Name: "none", MountPath: "/n"})
	},
	func(s *v1.PodSpec) {
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, v1.VolumeMount{Name: "data"})
	},
	func(s *v1.PodSpec) {
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, v1.VolumeMount{Name: "data", MountPath: "/data"})
	},
	func(s *v1.PodSpec) {
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, v1.VolumeMount{MountPath: "/o"})
	},
	func(s *v1.PodSpec) { s.Containers[0].LivenessProbe = &v1.Probe{} },
	func(s *v1.PodSpec) {
		s.Containers[0].LivenessProbe = &v1.Probe{ProbeHandler: get(80), SuccessThreshold: 2}
	},
	func(s *v1.PodSpec) {
		s.Containers[0].ReadinessProbe = &v1.Probe{ProbeHandler: get(0), SuccessThreshold: 2}
	},
	func(s *v1.PodSpec) {
		s.Containers[0].ReadinessProbe = &v1.Probe{ProbeHandler: get(70000), InitialDelaySeconds: -1}
	},
	func(s *v1.PodSpec) {
		s.Containers[0].StartupProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("no port!")}}}
	},
	func(s *v1.PodSpec) {
		s.Containers[0].StartupProbe = &v1.Probe{ProbeHandler: get(80), TimeoutSeconds: -1, PeriodSeconds: -1, FailureThreshold: -1}
	},
	func(s *v1.PodSpec) { s.Containers = nil },
	func(s *v1.PodSpec) { s.InitContainers = []v1.Container{{Name: "init"}} },
	func(s *v1.PodSpec) {
		s.InitContainers = []v1.Container{{Name: "init", Image: "i", ReadinessProbe: &v1.Probe{}}}
	},
	func(s *v1.PodSpec) {
		s.InitContainers = []v1.Container{{Name: "init", Image: "i", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), LivenessProbe: &v1.Probe{}}}
	},
	func(s *v1.PodSpec) { s.Volumes = append(s.Volumes, v1.Volume{Name: "data"}) },
	func(s *v1.PodSpec) { s.Volumes = append(s.Volumes, v1.Volume{}) },
	func(s *v1.PodSpec) { s.Volumes = append(s.Volumes, v1.Volume{Name: "Data!"}) },
	func(s *v1.PodSpec) { s.DNSPolicy = "Mine" },
	func(s *v1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](0) },
	func(s *v1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](60) },
	func(s *v1.PodSpec) { s.TerminationGracePeriodSeconds = ptr.To[int64](-1) },
}

func get(port int32) v1.ProbeHandler {
	return v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(port)}}
}

// applied makes a pod spec with up to two mistakes.
func (s source) applied(restart v1.RestartPolicy) v1.PodSpec {
	spec := v1.PodSpec{
		RestartPolicy: restart,
		Volumes:       []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, {Name: "more"}},
		Containers: []v1.Container{{
			Name: "c", Image: "i", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "more", MountPath: "/more"}},
			LivenessProbe: &v1.Probe{ProbeHandler: get(80)},
		}},
	}
	for range 2 {
		if len(spec.Containers) > 0 && s.chance(70) {
			pick(s, podMistakes...)(&spec)
		}
	}
	return spec
}

func number(s source) int32 { return pick[int32](s, 0, 0, 5, -1) }

// appliedObject makes an object of a random kind, with upstream's type and rules for it.
func (s source) appliedObject() (object updated, theirs runtime.Object, by rest.RESTCreateStrategy) {
	name := metav1.ObjectMeta{Name: "new", Namespace: "default", UID: "u"}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	template := func(restart v1.RestartPolicy) v1.PodTemplateSpec {
		return v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: selector.MatchLabels}, Spec: s.applied(restart)}
	}
	switch pick(s, 0, 1, 2, 3, 4, 5, 6, 7) {
	case 0:
		return &v1.Pod{ObjectMeta: name, Spec: s.applied("")}, &core.Pod{}, podregistry.Strategy
	case 1:
		d := &appsv1.Deployment{ObjectMeta: name, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template(""), MinReadySeconds: number(s)}}
		d.Spec.Strategy.Type = pick[appsv1.DeploymentStrategyType](s, "", "Recreate", "RollingUpdate", "OnDelete")
		if s.chance(30) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
		}
		if s.chance(30) {
			d.Spec.ProgressDeadlineSeconds, d.Spec.MinReadySeconds = ptr.To[int32](5), pick[int32](s, 4, 5, 600)
		}
		return d, &apps.Deployment{}, deployment.Strategy
	case 2:
		set := &appsv1.StatefulSet{ObjectMeta: name, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template(""), MinReadySeconds: number(s)}}
		set.Spec.PodManagementPolicy = pick[appsv1.PodManagementPolicyType](s, "", "Parallel", "Fast")
		set.Spec.UpdateStrategy.Type = pick[appsv1.StatefulSetUpdateStrategyType](s, "", "OnDelete", "RollingUpdate", "Never")
		if set.Spec.UpdateStrategy.Type == "OnDelete" && s.chance(50) {
			set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](1)}
		}
		if s.chance(50) {
			set.Spec.VolumeClaimTemplates = []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{"storage": resource.MustParse("1Gi")}}}}}
		}
		return set, &apps.StatefulSet{}, statefulset.Strategy
	case 3:
		set := &appsv1.DaemonSet{ObjectMeta: name, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template(""), MinReadySeconds: number(s)}}
		set.Spec.UpdateStrategy.Type = pick[appsv1.DaemonSetUpdateStrategyType](s, "", "OnDelete", "Recreate")
		return set, &apps.DaemonSet{}, daemonset.Strategy
	case 4:
		j := &batchv1.Job{ObjectMeta: name, Spec: batchv1.JobSpec{Template: template(pick[v1.RestartPolicy](s, "", "Never", "OnFailure", "Always"))}}
		j.Spec.Template.Labels = nil
		j.Spec.BackoffLimit, j.Spec.TTLSecondsAfterFinished = ptr.To(number(s)), ptr.To(number(s))
		j.Spec.ActiveDeadlineSeconds = ptr.To(int64(number(s)))
		j.Spec.CompletionMode = ptr.To(pick(s, batchv1.IndexedCompletion, batchv1.NonIndexedCompletion, "Other"))
		if s.chance(40) {
			j.Spec.BackoffLimitPerIndex = ptr.To(number(s))
		}
		return j, &batch.Job{}, job.Strategy
	case 5:
		claim := &v1.PersistentVolumeClaim{ObjectMeta: name}
		claim.Spec.AccessModes = some(s, 3, func() v1.PersistentVolumeAccessMode {
			return pick[v1.PersistentVolumeAccessMode](s, v1.ReadWriteOnce, v1.ReadWriteOncePod, v1.ReadOnlyMany, "Any")
		})
		if s.chance(70) {
			claim.Spec.Resources.Requests = v1.ResourceList{"storage": resource.MustParse(pick(s, "1Gi", "0", "-1"))}
		}
		claim.Spec.VolumeMode = maybe(s, 50, func() v1.PersistentVolumeMode { return pick[v1.PersistentVolumeMode](s, "Block", "Filesystem", "Disk") })
		return claim, &core.PersistentVolumeClaim{}, persistentvolumeclaim.Strategy
	case 6:
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Provisioner: pick(s, "", "csi.example.com")}
		class.ReclaimPolicy = maybe(s, 50, func() v1.PersistentVolumeReclaimPolicy {
			return pick[v1.PersistentVolumeReclaimPolicy](s, "Delete", "Retain", "Archive")
		})
		class.VolumeBindingMode = maybe(s, 50, func() storagev1.VolumeBindingMode {
			return pick[storagev1.VolumeBindingMode](s, "Immediate", "WaitForFirstConsumer", "Never")
		})
		return class, &storage.StorageClass{}, storageclass.Strategy
	}
	amounts := func() v1.ResourceList {
		list := v1.ResourceList{}
		for _, name := range []v1.ResourceName{"cpu", "memory"} {
			if s.chance(50) {
				list[name] = resource.MustParse(pick(s, "1", "2", "3"))
			}
		}
		return list
	}
	item := v1.LimitRangeItem{Type: v1.LimitTypeContainer, Min: amounts(), Max: amounts(), Default: amounts(), DefaultRequest: amounts()}
	return &v1.LimitRange{ObjectMeta: name, Spec: v1.LimitRangeSpec{Limits: []v1.LimitRangeItem{item}}}, &core.LimitRange{}, limitrange.Strategy
}

// TestManifestsAreRefusedInUpstreamsWords verifies that manifests with mistakes in fields that no
// scheduler reads are refused as by the API server. Fields given with a wrong value are compared by
// field and type of error.
func TestManifestsAreRefusedInUpstreamsWords(t *testing.T) {
	faulty, kinds := 0, map[string]int{}
	for seed := range uint64(2 * trials) {
		s := newSource(seed)
		s.bad = 0
		object, theirs, by := s.appliedObject()
		before := mistakes(rules.ValidateApplied(object))
		legacyscheme.Scheme.Default(object)
		ours := mistakes(rules.ValidateApplied(object))
		// Manifests are checked before defaulting. Only for limit ranges do defaults cause errors.
		if _, ok := object.(*v1.LimitRange); !ok && !slices.Equal(before, ours) {
			t.Fatalf("seed %d: %v, and with defaults %v", seed, before, ours)
		} else if len(before) == 0 && len(ours) > 0 {
			t.Fatalf("seed %d: only with defaults: %v", seed, ours)
		}
		internal(t, object, theirs)
		ctx := genericrequest.WithNamespace(genericrequest.NewContext(), "default")
		by.PrepareForCreate(ctx, theirs)
		if n := compare(t, seed, object, ours, mistakes(by.Validate(ctx, theirs))); n > 0 {
			faulty++
		}
		kinds[fmt.Sprintf("%T", object)]++
	}
	t.Logf("%v, %d of them refused", kinds, faulty)
	if faulty < trials/2 || faulty > 2*trials*9/10 {
		t.Error("too few objects are refused, or too few are not")
	}
}

var volumeIndex = regexp.MustCompile(`volumes\[\d+\]`)

// mistakes lists errors by field, type and detail, without the supported values, whose order
// differs, and without consequences of an unnamed or repeated object.
func mistakes(errs field.ErrorList) (list []string) {
	for _, err := range errs {
		detail := err.Detail
		if err.Type == field.ErrorTypeNotSupported {
			detail = ""
		}
		// For StatefulSets, upstream counts the volumes of the claim templates first.
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s: %s: %s", volumeIndex.ReplaceAllString(err.Field, "volumes[]"), err.Type, detail)))
	}
	slices.Sort(list)
	return list
}
