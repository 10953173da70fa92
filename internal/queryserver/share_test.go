// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"reflect"
	"strings"
	"testing"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// replica returns the i-th pod of a ReplicaSet, as decoded.
func replica(i string) *v1.Pod {
	yes := true
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-" + i, UID: types.UID("uid-" + i), Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"nth": i},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "set", Controller: &yes}},
		},
		Spec: v1.PodSpec{
			NodeName: "node-" + i,
			Volumes: []v1.Volume{{Name: "token-" + i, VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
				Sources: []v1.VolumeProjection{{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}}}}}},
			Containers: []v1.Container{{
				Name: "c", Image: strings.Clone("image"), VolumeMounts: []v1.VolumeMount{{Name: "token-" + i, MountPath: "/run"}},
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1.5Gi")}},
			}},
			Tolerations: []v1.Toleration{{Key: "a", Operator: "Exists"}},
		},
	}
}

// TestPodsOfAControllerShareMemory checks that sharing changes no pod, and what is shared.
func TestPodsOfAControllerShareMemory(t *testing.T) {
	m := models{}
	first, second := replica("1"), replica("2")
	m.share(first, nil)
	m.share(second, nil)
	if !reflect.DeepEqual(first, replica("1")) || !reflect.DeepEqual(second, replica("2")) {
		t.Error("sharing changed a pod")
	}
	same := func(what string, a, b any, want bool) {
		t.Helper()
		if got := reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer(); got != want {
			t.Errorf("%s shared: %t", what, got)
		}
	}
	same("labels", first.Labels, second.Labels, true)
	same("annotations", first.Annotations, second.Annotations, false)
	same("owners", first.OwnerReferences, second.OwnerReferences, true)
	same("tolerations", first.Spec.Tolerations, second.Spec.Tolerations, true)
	same("containers", first.Spec.Containers, second.Spec.Containers, false)
	same("requests", first.Spec.Containers[0].Resources.Requests, second.Spec.Containers[0].Resources.Requests, true)
	same("image", unsafe.StringData(first.Spec.Containers[0].Image), unsafe.StringData(second.Spec.Containers[0].Image), true)
	same("projection", first.Spec.Volumes[0].Projected, second.Spec.Volumes[0].Projected, true)

	// The model is the latest state of its pod, and leaves with its pod.
	changed := replica("1")
	changed.Labels["app"] = "other"
	m.share(changed, first)
	if changed.Labels["app"] != "other" || first.Labels["app"] != "web" || m["set"] != changed {
		t.Error(changed.Labels, first.Labels)
	}
	m.share(nil, second)
	if m["set"] != changed {
		t.Error("the end of another pod removed the model")
	}
	m.share(nil, changed)
	if len(m) != 0 {
		t.Error("the model remains after its pod")
	}

	// Neither a new controller of a pod nor a new pod of the same name leaves a model.
	m.share(first, nil)
	moved := replica("1")
	moved.OwnerReferences[0].UID = "other"
	m.share(moved, first)
	replaced := replica("1")
	replaced.UID, replaced.OwnerReferences[0].UID = "later", "other"
	m.share(replaced, moved)
	if len(m) != 1 || m["other"] != replaced {
		t.Errorf("%d models", len(m))
	}
	m.share(nil, replaced)
	if len(m) != 0 {
		t.Error("the model remains after its pod")
	}
}
