// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// hostile randomly uses the permissions of one namespace's user.
type hostile struct {
	client        kubernetes.Interface
	rng           *rand.Rand
	nodes, made   int
	done, refused *counts
}

// actOnce performs one action. A rejection by the API server is an acceptable result, and is
// counted.
func (h *hostile) actOnce(ctx context.Context) {
	deeds := []struct {
		weight int
		name   string
		do     func(context.Context) error
	}{
		{50, "create a pod", h.createPod},
		{12, "change a pod", h.changePod},
		{12, "delete a pod", h.deletePod},
		{1, "delete all pods", h.deleteAll},
		{5, "create a volume claim", h.createVolumeClaim},
		{8, "create a device claim", h.createDeviceClaim},
		{3, "delete claims", h.deleteClaims},
		{4, "create a budget", h.createBudget},
		{3, "create a service", h.createService},
		{2, "a flood of replicas", h.floodPods},
		{3, "forge a scheduler's Lease", h.forgeLease},
		{3, "forge a surge", h.forgeSurge},
		{3, "forge a pod of a drain", h.forgePod},
		{2, "create a claim with a huge quantity", h.hugeClaim},
	}

	sum := 0
	for _, d := range deeds {
		sum += d.weight
	}

	n := h.rng.IntN(sum)
	for _, d := range deeds {
		if n -= d.weight; n >= 0 {
			continue
		}
		err := d.do(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			h.done.addOne(d.name)
		default:
			h.refused.addOne(d.name + ": " + string(apierrors.ReasonForError(err)))
		}
		return
	}
}

func (h *hostile) newName(kind string) string {
	h.made++
	return fmt.Sprintf("%s-%d-%d", kind, h.made, h.rng.IntN(1<<30))
}

func (h *hostile) withChance(percent int) bool { return h.rng.IntN(100) < percent }

func oneOf[T any](h *hostile, all ...T) T { return all[h.rng.IntN(len(all))] }

// randomAmount returns a quantity that may overflow sums and products.
func (h *hostile) randomAmount() resource.Quantity {
	return resource.MustParse(oneOf(h, "9223372036854775807", "9223372036854775", "9223371865056083968",
		"4611686018427387904", "0", "1", "1m", "8Ei", "7Ei", "1e15", "100m", "64Mi", "3"))
}

func (h *hostile) randomCount() int { return oneOf(h, 1, 3, 9, 30, 100, 400, 1000) }

// createPod creates a pod with several oddities.
func (h *hostile) createPod(ctx context.Context) error {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: h.newName("p"), Labels: map[string]string{"app": oneOf(h, "a", "b", "c"),
			"n": fmt.Sprint(h.rng.IntN(50))}, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			AutomountServiceAccountToken: pointerTo(false), TerminationGracePeriodSeconds: pointerTo(oneOf[int64](h, 0, 1, 30, 1<<40)),
			Containers: []v1.Container{{Name: "c", Image: "none",
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("10m")}}}},
		},
	}

	odd := []func(*v1.Pod){
		h.setAmounts, h.setAmounts, h.chosenNode, h.preferredTerms, h.requiredTerms, h.addSpreads, h.nodeTerms, h.addTolerations,
		h.manyLabels, h.addAnnotations, h.addGates,
		h.addVolumes, h.addDevices, h.addDevices, h.addPorts, h.addContainers, h.setPriority, h.setOthers,
	}

	for range 1 + h.rng.IntN(4) {
		oneOf(h, odd...)(pod)
	}
	_, err := h.client.CoreV1().Pods(tenantNamespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// pickPod returns a random pod of the tenant.
func (h *hostile) pickPod(ctx context.Context) (*v1.Pod, error) {
	list, err := h.client.CoreV1().Pods(tenantNamespace).List(ctx, metav1.ListOptions{Limit: 100, ResourceVersion: "0"})
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[h.rng.IntN(len(list.Items))], nil
}

func (h *hostile) changePod(ctx context.Context) error {
	pod, err := h.pickPod(ctx)
	if pod == nil {
		return err
	}
	patch := oneOf(h, fmt.Sprintf(`{"metadata":{"labels":{"app":%q,"n":"%d"}}}`, oneOf(h, "a", "b", "witness"), h.rng.IntN(50)),
		fmt.Sprintf(`{"metadata":{"annotations":{"a":%q}}}`, strings.Repeat("y", h.rng.IntN(5000))),
		`{"spec":{"schedulingGates":null}}`, `{"metadata":{"finalizers":null}}`)
	_, err = h.client.CoreV1().Pods(tenantNamespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (h *hostile) deletePod(ctx context.Context) error {
	pod, err := h.pickPod(ctx)
	if pod == nil {
		return err
	}
	return h.client.CoreV1().Pods(tenantNamespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{GracePeriodSeconds: pointerTo(oneOf[int64](h, 0, 1, 30))})
}

func (h *hostile) deleteAll(ctx context.Context) error {
	return h.client.CoreV1().Pods(tenantNamespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: pointerTo(int64(0))}, metav1.ListOptions{})
}

func (h *hostile) volumeClaim() v1.PersistentVolumeClaimSpec {
	return v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{oneOf(h, v1.ReadWriteOnce, v1.ReadWriteMany,
			v1.ReadWriteOncePod)}, StorageClassName: pointerTo(oneOf(h, "late", "nobodys", "")),
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{"storage": resource.MustParse(oneOf(h, "1",
			"1Gi", "8Ei", "9223372036854775807"))}}, Selector: h.randomSelector(),
	}
}

func (h *hostile) createVolumeClaim(ctx context.Context) error {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("claim-", h.rng.IntN(30))}, Spec: h.volumeClaim()}
	_, err := h.client.CoreV1().PersistentVolumeClaims(tenantNamespace).Create(ctx, claim, metav1.CreateOptions{})
	return err
}

// createDeviceClaim requests devices in a computationally expensive way.
func (h *hostile) createDeviceClaim(ctx context.Context) error {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("claim-", h.rng.IntN(30))}}
	for i := range min(30, h.randomCount()) {
		exactly := &resourcev1.ExactDeviceRequest{DeviceClassName: oneOf(h, "tenant-device", "tenant-device",
			"nobodys"), AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: oneOf[int64](h, 1, 2, 3, 32)}
		if h.withChance(30) {
			exactly.AllocationMode, exactly.Count = resourcev1.DeviceAllocationModeAll, 0
		}
		if h.withChance(50) {
			exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: oneOf(h,
				`device.attributes["example.com"].odd`, `device.attributes["example.com"].nothing`,
				`device.driver.matches("(e|ex|exa)*mple.com")`, `[1,2,3,4,5,6,7,8,9].all(x, [1,2,3,4,5,6,7,8,9].all(y, x*y > 0))`)}}}
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests,
			resourcev1.DeviceRequest{Name: fmt.Sprint("r-", i), Exactly: exactly})
	}

	if h.withChance(40) {
		claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{
			MatchAttribute: pointerTo(resourcev1.FullyQualifiedName("example.com/rack")),
		}}
	}
	_, err := h.client.ResourceV1().ResourceClaims(tenantNamespace).Create(ctx, claim, metav1.CreateOptions{})
	return err
}

func (h *hostile) deleteClaims(ctx context.Context) error {
	name := fmt.Sprint("claim-", h.rng.IntN(30))
	if h.withChance(50) {
		return h.client.ResourceV1().ResourceClaims(tenantNamespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
	return h.client.CoreV1().PersistentVolumeClaims(tenantNamespace).Delete(ctx, name, metav1.DeleteOptions{})
}

func (h *hostile) createBudget(ctx context.Context) error {
	most := oneOf(h, intstr.FromInt32(0), intstr.FromString("100%"), intstr.FromInt32(1<<31-1))
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: h.newName("b")},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: h.randomSelector()}}
	_, err := h.client.PolicyV1().PodDisruptionBudgets(tenantNamespace).Create(ctx, budget, metav1.CreateOptions{})
	return err
}

func (h *hostile) createService(ctx context.Context) error {
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: h.newName("s")},
		Spec: v1.ServiceSpec{Selector: map[string]string{"app": oneOf(h, "a", "b")}, ClusterIP: "None"}}
	_, err := h.client.CoreV1().Services(tenantNamespace).Create(ctx, service, metav1.CreateOptions{})
	return err
}

// floodPods creates a workload of pods that fit nowhere, or that all have different shapes.
func (h *hostile) floodPods(ctx context.Context) error {
	labels := map[string]string{"app": oneOf(h, "a", "b", "c"), "set": h.newName("f")}
	template := podTemplate(labels, int64(1+h.rng.IntN(9000)), oneOf(h, "tenant-high", "tenant-low"), nil)
	if h.withChance(50) {
		template.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: h.randomKey(),
			WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: h.randomSelector()}}
	}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: labels["set"]}, Spec: appsv1.ReplicaSetSpec{
		Replicas: pointerTo(int32(20 + h.rng.IntN(100))), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}
	_, err := h.client.AppsV1().ReplicaSets(tenantNamespace).Create(ctx, set, metav1.CreateOptions{})
	return err
}
