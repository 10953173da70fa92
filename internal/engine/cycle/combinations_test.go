// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/world/hostile"
)

// combinations are tenant inputs that burden other tenants only in combination. Each of them
// consists of interacting objects, since randomly drawn fields rarely interact. They are used for
// every eighth tenant, in turn. Each has a unique text, so that no results are cached.
//
// They ensure that the test detects a removed safeguard. The test failed after the removal of each
// of the following safeguards: asynchronous compilation, and the length limit of compiled
// expressions (expressionsAndPods); the limit of an attempt's searches, its sharing by all nodes,
// and counting constraints (hardClaims); the limit of an attempt's effort, and counting looks at
// budgets (budgetsAndPods); selectsTooMuch (termsAndPods); the limits of claims and volumes
// (claimsAndVolumes); selectors read only once, and values in a hash table (longBudgetsAndPods);
// abbreviated shortage messages, and device classes scanned only once (longPods).
var combinations = []func(unique string) []Event{
	hugeQuantities, expressionsAndPods, hardClaims, budgetsAndPods, termsAndPods, claimsAndVolumes, longBudgetsAndPods, longTermsThatWait, longPods,
	budgetsOfANode,
}

// hugeQuantities returns selectors, claims and requests with quantities of ten characters, each
// taking seconds to compare, and pods waiting for them.
func hugeQuantities(unique string) (all []Event) {
	huge := resource.MustParse("1e60000000")
	for i, expression := range []string{
		`quantity("1e60000000").isGreaterThan(quantity("1"))`,
		`quantity("1e6" + "0000000").isLessThan(quantity("1"))`,
		`quantity("0e2000000000").isInteger()`,
		`quantity("1e-2000000000").isGreaterThan(quantity("1"))`,
		`device.driver != ""`,
	} {
		claim := aClaimForDevices("huge", i, 1)
		exactly := claim.Spec.Devices.Requests[0].Exactly
		exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression + ` || device.driver == "` + unique + `"`}}}
		if i == 4 {
			exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"gpu.example.com/memory": huge}}
		}
		all = append(all, Seen{ResourceClaims, claim}, Seen{Pods, using(ResourceClaims, []string{claim.Name}, uint64(i))})
	}

	volume := &v1.PersistentVolumeClaim{ObjectMeta: ofTenant("huge", 0)}
	volume.Spec.StorageClassName, volume.Spec.AccessModes = new("local"), []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	volume.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: huge}
	all = append(all, Seen{Claims, volume}, Seen{Pods, using(Claims, []string{volume.Name}, 0)})
	for i, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, "example.com/huge"} {
		pod := aPod(fmt.Sprint(unique, "huge-", name[:3]), "100m")
		pod.Namespace, pod.Spec.Priority = hostile.Namespace, new(int32(3000))
		pod.Spec.Containers[0].Resources.Requests[name] = huge
		if i == 1 {
			pod.Spec.NodeName = "node-30" // created with a node
		}
		all = append(all, Seen{Pods, pod})
	}
	return all
}

// expressionsAndPods returns claims selecting devices by expressions of maximum length, and pods
// waiting for them: one pod for a claim within the compilation limit, and one pod for claims beyond
// it.
func expressionsAndPods(unique string) (all []Event) {
	var names []string
	for i, expressions := range []int{8, 16, 16, 16, 16, 16, 16, 16} {
		claim := aClaimForDevices("long", i, 1)
		exactly := claim.Spec.Devices.Requests[0].Exactly
		for k := range expressions {
			text := fmt.Sprintf(`device.driver != "%s-%d-%d"`, unique, i, k) + strings.Repeat(` && device.driver != "x"`, 400)
			exactly.Selectors = append(exactly.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: text}})
		}
		all, names = append(all, Seen{ResourceClaims, claim}), append(names, claim.Name)
	}
	return append(all, Seen{Pods, using(ResourceClaims, names[:1], 0)}, Seen{Pods, using(ResourceClaims, names, 1)})
}

// hardClaims returns claims for more identical devices than any node has, and pods waiting for
// them. Only trying all combinations shows that a claim cannot be satisfied. Two claims have the
// maximum number of constraints, and two have the maximum number of requests and alternatives,
// which makes every try more expensive.
func hardClaims(unique string) (all []Event) {
	constraint := func(attribute resourcev1.FullyQualifiedName) resourcev1.DeviceConstraint {
		return resourcev1.DeviceConstraint{MatchAttribute: &attribute}
	}
	for i := range 4 {
		claim := aClaimForDevices("hard", i, devicesOfHard/2+1)
		of := &claim.Spec.Devices
		of.Requests[0].Name = fmt.Sprint(unique, i) // unique, so that results for other claims do not apply
		if i%2 == 1 {
			of.Constraints = slices.Repeat([]resourcev1.DeviceConstraint{constraint("gpu.example.com/of")}, 31)
		}
		of.Constraints = append(of.Constraints, constraint("gpu.example.com/half"))
		if i >= 2 {
			one := resourcev1.DeviceSubRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}
			many := resourcev1.DeviceRequest{Name: of.Requests[0].Name, FirstAvailable: slices.Repeat([]resourcev1.DeviceSubRequest{one}, 8)}
			of.Requests = slices.Repeat([]resourcev1.DeviceRequest{many}, 32)
		}
		all = append(all, Seen{ResourceClaims, claim}, Seen{Pods, using(ResourceClaims, []string{claim.Name}, uint64(i))})
	}
	return all
}

func aClaimForDevices(name string, i int, count int64) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{ObjectMeta: ofTenant(name, i)}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
	}}}
	return claim
}

// budgetsAndPods returns thousands of budgets, and as many uniquely labeled pods as potential
// victims.
func budgetsAndPods(unique string) (all []Event) {
	for i := range 3000 {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: ofTenant("b", i), Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1000}}
		budget.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprint(unique, i)}},
		}}
		all = append(all, Seen{DisruptionBudgets, budget})
	}
	return append(all, victims(unique, 3000)...)
}

// budgetsOfANode returns the objects of budgetsAndPods with all pods on one node, so that they are
// examined in one pass.
func budgetsOfANode(unique string) []Event {
	all := budgetsAndPods(unique)
	for _, e := range all {
		if pod, is := e.(Seen).Object.(*v1.Pod); is {
			pod.Spec.NodeName = "node-19"
		}
	}
	return all
}

// victims returns uniquely labeled pods, on the nodes where ordinary pods must preempt.
func victims(unique string, many int) (all []Event) {
	for i := range many {
		pod := aPod(fmt.Sprint("victim-", i), "100m")
		pod.Namespace, pod.Labels = hostile.Namespace, map[string]string{"app": fmt.Sprint(unique, i)}
		pod.Spec.Priority, pod.Spec.NodeName = new(int32(-20)), fmt.Sprint("node-", 19+20*(i%(crowdNodes/20)))
		all = append(all, Seen{Pods, pod})
	}
	return all
}

// termsAndPods returns a pod with the maximum number of terms for an object, and pods to match
// against each of them.
func termsAndPods(unique string) (all []Event) {
	pod := aPod("terms", "100m")
	pod.Namespace, pod.Spec.Priority = hostile.Namespace, new(int32(3000))
	anti := &v1.PodAntiAffinity{}
	for k := range 10_000 {
		anti.RequiredDuringSchedulingIgnoredDuringExecution = append(anti.RequiredDuringSchedulingIgnoredDuringExecution, v1.PodAffinityTerm{
			TopologyKey: v1.LabelHostname,
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprint(unique, k)}},
			}},
		})
	}
	pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: anti}
	return append(victims(unique, 2000), Seen{Pods, pod})
}

// claimsAndVolumes returns a pod with thousands of claims for existing volumes.
func claimsAndVolumes(string) (all []Event) {
	class, names := "zonal", []string{}
	for i := range 2000 {
		claim := &v1.PersistentVolumeClaim{ObjectMeta: ofTenant("claim", i)}
		claim.Spec.AccessModes, claim.Spec.StorageClassName = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, &class
		claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		all, names = append(all, Seen{Claims, claim}), append(names, claim.Name)
	}
	return append(all, Seen{Pods, using(Claims, names, 0)})
}

// longBudgetsAndPods returns budgets with selectors of maximum length.
func longBudgetsAndPods(unique string) (all []Event) {
	for i := range 9 {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: ofTenant("long-b", i), Spec: policyv1.PodDisruptionBudgetSpec{Selector: longSelector(unique, i)}}
		all = append(all, Seen{DisruptionBudgets, budget})
	}
	return append(all, victims(unique, 300)...)
}

// longTermsThatWait returns pending pods with selectors of maximum length. Every event may make
// room for them.
func longTermsThatWait(unique string) (all []Event) {
	for i := range 9 {
		pod := withLongTerm(fmt.Sprint("waits-", i), longSelector(unique, i))
		pod.Spec.NodeSelector = map[string]string{"nobody": "has-this"}
		all = append(all, Seen{Pods, pod})
	}
	return all
}

// longPods returns pods with the maximum number of containers, both pending and on a node.
func longPods(unique string) (all []Event) {
	for i, pod := range hostile.LongPods(unique) {
		pod.ObjectMeta, pod.Spec.SchedulerName, pod.Spec.Priority = ofTenant(unique+"long", i), v1.DefaultSchedulerName, new(int32(3000))
		pod.Labels = map[string]string{"app": "app-1"}
		placed := pod.DeepCopy()
		placed.ObjectMeta, placed.Spec.NodeName = ofTenant(unique+"placed", i), "node-7"
		all = append(all, Seen{Pods, pod}, Seen{Pods, placed})
	}
	return all
}

func ofTenant(name string, i int) metav1.ObjectMeta {
	name = fmt.Sprint(name, "-", i)
	return metav1.ObjectMeta{Namespace: hostile.Namespace, Name: name, UID: types.UID(name)}
}
