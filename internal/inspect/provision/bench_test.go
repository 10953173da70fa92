// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// BenchmarkPlan measures planning for pods like those of Karpenter's benchmark; `make
// bench-karpenter` runs it. The time excludes opening the world. cost/h is the cost of the nodes.
func BenchmarkPlan(b *testing.B) {
	catalog := fourHundredTypes()
	for _, count := range []int{1000, 5000, 20000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			pods, cost := diversePods(count), 0.0
			for b.Loop() {
				b.StopTimer()
				w, err := simulate.Open(manifest.Assemble("bench", pods), simulate.Options{Seed: 1})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				plan, err := Make(w, catalog, Options{})
				if err != nil || len(plan.Pending) > 0 {
					b.Fatalf("%v, %d pods are pending", err, len(plan.Pending))
				}
				cost = plan.Hour
			}
			b.ReportMetric(cost, "cost/h")
		})
	}
}

// fourHundredTypes returns a catalog of node types with 1 to 400 CPUs, 2Gi of memory and 10 pods
// per CPU, in three zones.
func fourHundredTypes() *Catalog {
	c := &Catalog{}
	for cpu := int64(1); cpu <= 400; cpu++ {
		for _, zone := range []string{"a", "b", "c"} {
			name := fmt.Sprint("type-", cpu)
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
				v1.LabelTopologyZone: zone, v1.LabelInstanceTypeStable: name,
			}}}
			node.Status.Allocatable = v1.ResourceList{
				v1.ResourceCPU:    *resource.NewMilliQuantity(cpu*1000-100, resource.DecimalSI),
				v1.ResourceMemory: *resource.NewQuantity(cpu<<31-10<<20, resource.BinarySI),
				v1.ResourcePods:   *resource.NewQuantity(10*cpu, resource.DecimalSI),
			}
			price := 0.1*float64(cpu) + 0.1e-9*float64(cpu<<31)
			c.Offers = append(c.Offers, Offer{Pool: "p", Type: name, Zone: zone, Price: price, Node: node, pool: -1})
		}
	}
	return c
}

// diversePods returns five kinds of pods in equal numbers: plain, spread over zones, spread over
// nodes, together in a zone, and one per node.
func diversePods(count int) (list []metav1.Object) {
	r := rand.New(rand.NewPCG(42, 0))
	letter := func() map[string]string { return map[string]string{"my-label": string(rune('a' + r.IntN(7)))} }
	for i := range count {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("pod-%05d", i), Labels: letter()}}
		own := []v1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels}, TopologyKey: v1.LabelTopologyZone}}
		spread := v1.TopologySpreadConstraint{
			MaxSkew: 1, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: letter()},
		}

		switch i % 5 {
		case 1:
			spread.TopologyKey = v1.LabelTopologyZone
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, spread)
		case 2:
			spread.TopologyKey = v1.LabelHostname
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, spread)
		case 3:
			pod.Labels = map[string]string{"together": string(rune('a' + r.IntN(7)))}
			own[0].LabelSelector.MatchLabels = pod.Labels
			pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: own}}
		case 4:
			pod.Labels = map[string]string{"app": "nginx"}
			own[0].LabelSelector.MatchLabels, own[0].TopologyKey = pod.Labels, v1.LabelHostname
			pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: own}}
		}

		pod.Spec.Containers = []v1.Container{{Name: "main", Image: "pause", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity([]int64{100, 250, 500, 1000, 1500}[r.IntN(5)], resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity([]int64{100, 256, 512, 1024, 2048, 4096}[r.IntN(6)]<<20, resource.BinarySI),
		}}}}
		list = append(list, pod)
	}
	return list
}
