// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Merge returns the object that results from kubectl apply of a manifest to an existing object of
// its kind. Fields missing from the manifest stay, unless the last applied manifest had them. An
// object never stored by an API server counts as its own last manifest. Merge also returns the
// existing object with defaults, for comparison. It modifies neither argument.
func Merge(was, manifest metav1.Object) (merged, before metav1.Object, err error) {
	var texts [2][]byte
	for i, object := range []metav1.Object{was, manifest} {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err == nil {
			omitEmpty(fields)
			texts[i], err = json.Marshal(fields)
		}
		if err != nil {
			return nil, nil, err
		}
	}

	before = was.(runtime.Object).DeepCopyObject().(metav1.Object)
	merged = reflect.New(reflect.TypeOf(was).Elem()).Interface().(metav1.Object)
	last := []byte(was.GetAnnotations()[v1.LastAppliedConfigAnnotation])
	switch was.(type) {
	case *v1.Pod, *v1.PersistentVolumeClaim, *v1.PersistentVolume, *batchv1.Job: // a server or controller has completed these objects
	default:
		if len(last) == 0 && was.GetResourceVersion() == "" {
			last = texts[0]
		}
	}
	patches, err := strategicpatch.NewPatchMetaFromStruct(merged)
	if err != nil {
		return nil, nil, err
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch(last, texts[1], texts[0], patches, true)
	if err != nil {
		return nil, nil, err
	}
	text, err := strategicpatch.StrategicMergePatchUsingLookupPatchMeta(texts[0], patch, patches)
	if err == nil {
		err = json.Unmarshal(text, merged)
	}
	if p, ok := merged.(*v1.Pod); ok && len(last) == 0 {
		p.Spec.SchedulingGates = manifest.(*v1.Pod).Spec.SchedulingGates // a client that removes a gate lists the remaining gates
	}
	if p, ok := merged.(*v1.Pod); ok && err == nil {
		keepPullPolicies(p.Spec.Containers, was.(*v1.Pod).Spec.Containers)
		keepPullPolicies(p.Spec.InitContainers, was.(*v1.Pod).Spec.InitContainers)
	}
	for _, object := range []metav1.Object{merged, before} {
		byType[reflect.TypeOf(object).Elem()].prepare(object) // ignore faults: Read reports those of the manifest
	}
	return merged, before, err
}

// keepPullPolicies keeps the existing pull policy in containers with a changed image. The default
// depends on the image, but the API server sets it only in new pods.
func keepPullPolicies(now, was []v1.Container) {
	for i := range now {
		j := slices.IndexFunc(was, func(c v1.Container) bool { return c.Name == now[i].Name })
		if j >= 0 && now[i].Image != was[j].Image {
			now[i].ImagePullPolicy = was[j].ImagePullPolicy
		}
	}
}

// omitEmpty removes nulls and empty strings, which typed objects have for fields missing from a
// manifest.
func omitEmpty(fields map[string]any) {
	for name, value := range fields {
		switch value := value.(type) {
		case nil:
			delete(fields, name)
		case string:
			if value == "" {
				delete(fields, name)
			}
		case map[string]any:
			omitEmpty(value)
		}
	}
}

// KindOf returns the kind of an object of the set.
func KindOf(object metav1.Object) schema.GroupVersionKind {
	k := byType[reflect.TypeOf(object).Elem()]
	return schema.FromAPIVersionAndKind(k.apiVersion, k.name)
}

// Check calls check for each object of the set, and returns its errors with their places, in the
// order of the input. It must be called before Expand.
func (s *Set) Check(check func(metav1.Object) error) error {
	var errs Errors
	for _, k := range ordered {
		for i, object := range k.list(s) {
			if err := check(object); err != nil {
				at := s.placeOf(k.name, i)
				errs = append(errs, &Error{File: s.fileName(at.file), Line: int(at.line), Text: err.Error()})
			}
		}
	}
	if len(errs) == 0 {
		return nil
	}
	slices.SortStableFunc(errs, func(a, b *Error) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) })
	return errs
}
