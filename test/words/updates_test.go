// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"context"
	"fmt"
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
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/storage"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// faults formats errors without the values, which upstream prints as its internal types, and
// without the differences that follow some errors.
func faults(errs field.ErrorList) []string {
	list := []string{}
	for _, err := range errs {
		detail, _, _ := strings.Cut(err.Detail, "\n")
		list = append(list, fmt.Sprintf("%s: %s: %s", err.Field, err.Type, detail))
	}
	slices.Sort(list)
	return list
}

// updated is an API object before or after an update.
type updated interface {
	metav1.Object
	runtime.Object
}

// strategy is upstream's strategy of a kind.
type strategy interface {
	NamespaceScoped() bool
	Validate(ctx context.Context, obj runtime.Object) field.ErrorList
	ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList
}

// compareUpdate compares the verdicts on an update. If one of the objects is invalid itself, it
// returns false.
func compareUpdate[T any](t *testing.T, seed uint64, now, was updated, by strategy) (errors int, sound bool) {
	ctx := genericrequest.WithNamespace(genericrequest.NewContext(), "default")
	var theirs [2]runtime.Object
	for i, object := range []updated{now, was} {
		if by.NamespaceScoped() {
			object.SetNamespace("default")
		}
		legacyscheme.Scheme.Default(object)
		theirs[i] = any(new(T)).(runtime.Object)
		internal(t, object, theirs[i])
		if len(by.Validate(ctx, theirs[i])) > 0 {
			return 0, false
		}
		theirs[i].(metav1.Object).SetResourceVersion("1")
	}
	return compare(t, seed, []any{now, was}, faults(rules.ValidateUpdate(now, was)), faults(by.ValidateUpdate(ctx, theirs[0], theirs[1]))), true
}

// mix changes random fields of a pod, most of which affect placement.
func (s source) mix(spec, other *v1.PodSpec) {
	change := func(f func()) {
		if s.chance(15) {
			f()
		}
	}
	change(func() { spec.NodeSelector = other.NodeSelector })
	change(func() { spec.Affinity = other.Affinity })
	change(func() { spec.Tolerations = append(spec.Tolerations, other.Tolerations...) })
	change(func() { spec.Tolerations = other.Tolerations })
	change(func() { spec.SchedulingGates = other.SchedulingGates })
	change(func() { spec.Containers = other.Containers })
	change(func() { spec.Containers[0].Image = "other" })
	change(func() { spec.Containers[0].Resources.Requests = s.amounts() })
	change(func() { spec.ActiveDeadlineSeconds = pick(s, nil, ptr.To[int64](3), ptr.To[int64](9)) })
	change(func() { spec.TerminationGracePeriodSeconds = ptr.To[int64](1) })
	if affinity := spec.Affinity; affinity != nil && affinity.NodeAffinity != nil {
		if required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i := range required.NodeSelectorTerms {
				change(func() {
					term := &required.NodeSelectorTerms[i]
					term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{Key: "a", Operator: v1.NodeSelectorOpExists})
				})
			}
		}
	}
}

func (s source) template() v1.PodTemplateSpec {
	pod := s.soundPod()
	pod.Spec.RestartPolicy, pod.Spec.EphemeralContainers = v1.RestartPolicyNever, nil
	return v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}}, Spec: pod.Spec}
}

func TestUpdatesAreRefusedInUpstreamsWords(t *testing.T) {
	made := map[string]func(source, uint64) (errors int, sound bool){
		"pods": func(s source, seed uint64) (int, bool) {
			was := s.soundPod()
			was.Spec.ActiveDeadlineSeconds = pick(s, nil, ptr.To[int64](5))
			now := was.DeepCopy()
			s.mix(&now.Spec, &s.soundPod().Spec)
			for _, pod := range []*v1.Pod{now, was} {
				if a := pod.Spec.Affinity; a != nil && *a == (v1.Affinity{}) {
					pod.Spec.Affinity = nil // upstream refuses the removal of an empty affinity
				}
			}
			return compareUpdate[core.Pod](t, seed, now, was, podregistry.Strategy)
		},
		"jobs": func(s source, seed uint64) (int, bool) {
			was := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}, Spec: batchv1.JobSpec{
				Template: s.template(), Parallelism: ptr.To[int32](2), Completions: ptr.To[int32](2), Suspend: ptr.To(s.chance(60)),
				CompletionMode: ptr.To(pick(s, batchv1.IndexedCompletion, batchv1.NonIndexedCompletion)), ManualSelector: ptr.To(true),
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}}}
			now := was.DeepCopy()
			other := s.template()
			s.mix(&now.Spec.Template.Spec, &other.Spec)
			if s.chance(30) {
				now.Spec.Completions = pick(s, nil, ptr.To[int32](1), ptr.To[int32](2), ptr.To[int32](3))
				now.Spec.Parallelism = pick(s, ptr.To[int32](2), ptr.To[int32](3))
			}
			if s.chance(20) {
				now.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion)
			}
			if s.chance(20) {
				now.Spec.Template.Labels["more"] = "a"
			}
			if s.chance(20) {
				now.Spec.BackoffLimitPerIndex = ptr.To[int32](1)
			}
			if s.chance(30) {
				was.Status.StartTime = &metav1.Time{}
				if s.chance(50) {
					was.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: v1.ConditionTrue}}
				}
			}
			was.Status.Active = pick[int32](s, 0, 0, 0, 1)
			return compareUpdate[batch.Job](t, seed, now, was, job.Strategy)
		},
		"sets": func(s source, seed uint64) (int, bool) {
			was := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: appsv1.StatefulSetSpec{
				Template: s.template(), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, ServiceName: "a"}}
			was.Spec.Template.Spec.RestartPolicy = v1.RestartPolicyAlways
			was.Spec.Template.Labels["tier"] = "a"
			now := was.DeepCopy()
			now.Spec.ServiceName = pick(s, "a", "a", "b", "")
			now.Spec.PodManagementPolicy = pick(s, "", "", appsv1.ParallelPodManagement)
			now.Spec.Selector.MatchLabels = pick(s, was.Spec.Selector.MatchLabels, map[string]string{"tier": "a"})
			now.Spec.MinReadySeconds = pick[int32](s, 0, 1)
			return compareUpdate[apps.StatefulSet](t, seed, now, was, statefulset.Strategy)
		},
		"claims": func(s source, seed uint64) (int, bool) {
			claim := func() *v1.PersistentVolumeClaim {
				return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1.PersistentVolumeClaimSpec{
					AccessModes:      []v1.PersistentVolumeAccessMode{pick(s, v1.ReadWriteOnce, v1.ReadWriteOnce, v1.ReadOnlyMany)},
					StorageClassName: pick(s, nil, ptr.To("slow"), ptr.To("slow"), ptr.To("fast")),
					VolumeName:       pick(s, "", "v"), VolumeMode: ptr.To(pick(s, v1.PersistentVolumeFilesystem, v1.PersistentVolumeBlock)),
					Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{
						v1.ResourceStorage: pick(s, resource.MustParse("1Gi"), resource.MustParse("2Gi"), resource.MustParse("3Gi"))}},
				}}
			}
			was, now := claim(), claim()
			if s.chance(50) {
				was.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}}
			}
			now.Status = was.Status
			return compareUpdate[core.PersistentVolumeClaim](t, seed, now, was, persistentvolumeclaim.Strategy)
		},
		"classes": func(s source, seed uint64) (int, bool) {
			class := func() *storagev1.StorageClass {
				return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Provisioner: pick(s, "a", "b"),
					VolumeBindingMode: ptr.To(pick(s, storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)),
					ReclaimPolicy:     ptr.To(pick(s, v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain)),
					Parameters:        pick(s, nil, map[string]string{"a": "b"}), AllowVolumeExpansion: ptr.To(s.chance(50))}
			}
			return compareUpdate[storage.StorageClass](t, seed, class(), class(), storageclass.Strategy)
		},
	}
	for name, compared := range made {
		errors, sound := 0, 0
		for seed := range uint64(trials) {
			s := newSource(seed)
			s.bad = 0
			n, ok := compared(s, seed)
			if errors += n; ok {
				sound++
			}
		}
		if t.Logf("%s: %d updates, %d errors compared", name, sound, errors); errors < trials/10 || sound < trials/4 {
			t.Errorf("%s: too few to compare", name)
		}
	}
}
