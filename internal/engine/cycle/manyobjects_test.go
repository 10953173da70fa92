// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

// TestManyBudgetsHoldNobodyUp verifies that an attempt for another tenant's preempting pod examines
// no more budgets than its limit of work allows. A tenant stores thousands of disruption budgets,
// and has a uniquely labeled pod on every node.
func TestManyBudgetsHoldNobodyUp(t *testing.T) {
	measuresTime(t)
	const budgets = 4000
	for name, selector := range map[string]metav1.LabelSelector{
		"that cover all":  {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"x"}}}},
		"that cover none": {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpDoesNotExist}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t)
			for i := range crowdNodes {
				pod := aPod(fmt.Sprint("covered-", i), "100m")
				pod.Namespace, pod.Labels = "tenant", map[string]string{"app": fmt.Sprint("covered-", i)}
				pod.Spec.Priority, pod.Spec.NodeName = new(int32(-20)), fmt.Sprint("node-", i)
				c.tell(Seen{Pods, pod})
			}
			for i := range budgets {
				name := fmt.Sprint("b-", i)
				c.tell(Seen{DisruptionBudgets, &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, UID: types.UID(name)},
					Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &selector},
					Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1000},
				}})
			}

			took, text := c.attempt("ordinary", holdsTheLoop/2, func(pod *v1.Pod) { pod.Namespace = "other" })
			t.Logf("the longest attempt took %v: %.300s", took, text)
		})
	}
}

// TestManyLabelsHoldNobodyUp verifies that attempts stay short for a pod with the maximum number of
// labels for an object, among pods whose terms have the same number of requirements.
func TestManyLabelsHoldNobodyUp(t *testing.T) {
	measuresTime(t)
	c := newCrowd(t)
	for i := range 120 {
		pod := withLongTerm(fmt.Sprint("placed-", i), wideSelector(i%4))
		pod.Spec.NodeName = fmt.Sprint("node-", i)
		pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].NamespaceSelector.MatchLabels = map[string]string{"a": fmt.Sprint(i)}
		c.tell(Seen{Pods, pod})
	}
	took, text := c.attempt("wide", holdsTheLoop/2, func(pod *v1.Pod) {
		pod.Namespace = "tenant"
		for k := range 30_000 {
			pod.Labels[fmt.Sprint("l-", k)] = ""
		}
	})
	t.Logf("the longest attempt took %v: %.300s", took, text)
}

// TestManyTolerationsHoldNobodyUp verifies that attempts stay short if nodes have unique taints and
// a pod has tens of thousands of tolerations, for whole keys or for single values of one key.
func TestManyTolerationsHoldNobodyUp(t *testing.T) {
	measuresTime(t)
	c := newCrowd(t)
	for i := range 2000 {
		name := fmt.Sprint("tainted-", i)
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}}
		node.Spec.Taints = []v1.Taint{{Key: "own", Value: name, Effect: v1.TaintEffectNoSchedule}, {Key: name, Effect: v1.TaintEffectPreferNoSchedule}}
		node.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("16Gi"), v1.ResourcePods: resource.MustParse("110")}
		c.tell(Seen{Nodes, node})
	}
	for _, key := range []string{"", "own"} {
		took, text := c.attempt("tolerates-"+key, mostOfStep, func(pod *v1.Pod) {
			for k := range 20_000 {
				name := fmt.Sprint("other-", k)
				toleration := v1.Toleration{Key: name, Operator: v1.TolerationOpExists}
				if key != "" {
					toleration = v1.Toleration{Key: key, Value: name, Effect: v1.TaintEffectNoSchedule}
				}
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
			}
		})
		t.Logf("the longest attempt took %v: %.300s", took, text)
	}
}

// TestManyDisksHoldNobodyUp verifies that attempts stay short if a tenant's pods, both pending and
// on nodes, each name thousands of disks. Two pods on a node may not share such a disk.
func TestManyDisksHoldNobodyUp(t *testing.T) {
	measuresTime(t)
	const pods, disks = 100, 3000
	for name, volume := range map[string]func(which int) v1.VolumeSource{
		"gce": func(i int) v1.VolumeSource {
			return v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: fmt.Sprint("d-", i)}}
		},
		"rbd": func(i int) v1.VolumeSource {
			return v1.VolumeSource{RBD: &v1.RBDVolumeSource{CephMonitors: []string{"a", "b", "c"}, RBDPool: "p", RBDImage: fmt.Sprint("i-", i)}}
		},
	} {
		c := newCrowd(t)
		add := func(pod *v1.Pod, first int) {
			for k := range disks {
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("v-", k), VolumeSource: volume(first + k)})
			}
		}
		for i := range pods {
			pod := aPod(fmt.Sprint("placed-", i), "100m")
			pod.Namespace, pod.Spec.NodeName = "tenant", fmt.Sprint("node-", i%20)
			add(pod, i*disks)
			c.tell(Seen{Pods, pod})
		}
		for i := range 2 {
			took, text := c.attempt(fmt.Sprint(name, "-", i), mostOfStep, func(pod *v1.Pod) {
				pod.Namespace = "tenant"
				add(pod, i*pods*disks)
			})
			t.Logf("%s: the longest attempt took %v: %.200s", name, took, text)
		}
	}
}

// TestManyAttachedVolumesHoldNobodyUp verifies that attempts stay short for a pod with thousands of
// volumes, on nodes with a limit of attached volumes.
func TestManyAttachedVolumesHoldNobodyUp(t *testing.T) {
	measuresTime(t)
	c := newCrowd(t)
	const driver, volumes = "csi.example.com", 3000
	for i := range crowdNodes {
		c.tell(Seen{CSINodes, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "x", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(2 * volumes))}}}},
		}})
	}
	room := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	for i := range volumes {
		name := fmt.Sprint("v-", i)
		volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}}
		volume.Spec.Capacity, volume.Spec.AccessModes = room, modes
		volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "tenant", Name: name, UID: types.UID(name)}
		volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}
		c.tell(Seen{Volumes, volume})
		c.tell(Seen{Claims, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, UID: types.UID(name), Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec: v1.PersistentVolumeClaimSpec{
				VolumeName: name, StorageClassName: new(""), AccessModes: modes, Resources: v1.VolumeResourceRequirements{Requests: room},
			},
			Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		}})
	}
	took, text := c.attempt("attaches", mostOfStep, func(pod *v1.Pod) {
		pod.Namespace = "tenant"
		for k := range volumes {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("v-", k), VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("v-", k)},
			}})
		}
	})
	t.Logf("the longest attempt took %v: %.300s", took, text)
}

// TestManyVolumesHoldNobodyUp verifies that attempts stay short for pods with many claims, if
// thousands of available volumes are confined to a zone rather than to a node.
func TestManyVolumesHoldNobodyUp(t *testing.T) {
	measuresTime(t)
	c := newCrowd(t)
	later, class := storagev1.VolumeBindingWaitForFirstConsumer, "local"
	c.tell(Seen{StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &later}})
	gibibyte := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	for i := range 5000 {
		volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v-", i)}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable}}
		volume.Spec.StorageClassName, volume.Spec.Capacity, volume.Spec.AccessModes = class, gibibyte, modes
		volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
			{MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{"z1"}}}},
		}}}
		c.tell(Seen{Volumes, volume})
	}
	for i := range crowdNodes { // free room on every node
		c.tell(Gone{Pods, aPod(fmt.Sprint("low-", i, "-0"), "100m")})
	}

	for _, claims := range []int{1, 20, 50, 200, 1000} {
		took, text := c.attempt(fmt.Sprint("with-", claims), holdsTheLoop, func(pod *v1.Pod) {
			pod.Namespace = "tenant"
			for i := range claims {
				name := fmt.Sprint("claim-", claims, "-", i)
				claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, UID: types.UID(name)}}
				claim.Spec.AccessModes, claim.Spec.StorageClassName, claim.Spec.Resources.Requests = modes, &class, gibibyte
				c.tell(Seen{Claims, claim})
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
			}
		})
		t.Logf("%d claims: the longest attempt took %v: %.200s", claims, took, text)
	}
}
