// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// BenchmarkDecide measures the time from receiving a *v1.Pod to its placement on one of 5,000
// nodes, including bookkeeping. `make bench` compares it with upstream.
func BenchmarkDecide(b *testing.B) {
	for _, mode := range []string{"plain", "spread", "affinity", "anti", "taints", "500 shapes", "members", "volumes", "1000 apps, spread", "1000 apps, affinity", "1000 apps, anti", "members, affinity"} {
		b.Run(mode, func(b *testing.B) {
			c := benchCluster(5000, mode == "taints")
			claims(c, 1000)
			d := New(c, plugins.Default(), 1)
			pods := make([]*v1.Pod, 1000)
			for i := range pods {
				pods[i] = benchPod(i, mode)
			}
			for _, pod := range pods { // the first decision of a class costs more; upstream has no such cost
				d.Decide(c.Pending(pod))
			}
			var placed []*cluster.Pod
			i := 0
			for b.Loop() {
				pod := *pods[i%len(pods)]
				pod.UID = types.UID(fmt.Sprint(i))
				p := c.Pending(&pod)
				decision := d.Decide(p)
				if decision.Node == nil {
					b.Fatalf("pod %d: no node", i)
				}
				c.Place(p, decision.Node)
				placed = append(placed, p)
				if len(placed) == 40_000 { // before the cluster is full
					b.StopTimer()
					for _, p := range placed {
						c.RemovePod(p.UID())
					}
					placed = placed[:0]
					for _, pod := range pods {
						d.Decide(c.Pending(pod))
					}
					b.StartTimer()
				}
				i++
			}
		})
	}
}

func benchCluster(nodes int, tainted bool) *cluster.Cluster {
	c := cluster.New()
	for i := range nodes {
		n := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{
				v1.LabelHostname: fmt.Sprintf("node-%d", i), v1.LabelTopologyZone: fmt.Sprintf("z%d", i%3),
			}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("32"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
			}},
		}
		if tainted {
			n.Spec.Taints = []v1.Taint{{Key: "dedicated", Value: fmt.Sprintf("g%d", i%5), Effect: v1.TaintEffectNoSchedule}}
		}
		c.SetNode(n)
	}
	return c
}

func benchPod(i int, mode string) *v1.Pod {
	app := fmt.Sprintf("app-%d", i%10)
	if many, of := strings.CutPrefix(mode, "1000 apps, "); of {
		app, mode = fmt.Sprintf("app-%d", i), many
	}
	cpu, memory := int64(100), int64(200<<20)
	if mode == "500 shapes" {
		cpu, memory = cpu+int64(i%500), memory+int64(i%500)<<20
	}
	zero := int32(0)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": app}},
		Spec: v1.PodSpec{Priority: &zero, SchedulerName: "default-scheduler", Containers: []v1.Container{{Name: "c", Image: "registry.k8s.io/pause:3.10",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
			}}}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	term := v1.PodAffinityTerm{LabelSelector: selector, TopologyKey: v1.LabelTopologyZone}
	switch mode {
	case "spread":
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{
			{MaxSkew: 5, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selector},
			{MaxSkew: 3, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: selector},
		}
	case "affinity":
		pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: term}}}}
	case "anti":
		term.TopologyKey = v1.LabelHostname
		pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
	case "members, affinity":
		pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
		fallthrough
	case "members": // members of StatefulSets
		pod.Labels["apps.kubernetes.io/pod-index"] = fmt.Sprint(i)
	case "volumes":
		pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("claim-%d", i)}}}}
	case "taints":
		pod.Spec.Tolerations = []v1.Toleration{{Key: "dedicated", Operator: v1.TolerationOpEqual, Value: fmt.Sprintf("g%d", i%5), Effect: v1.TaintEffectNoSchedule}}
	}
	return pod
}

// claims adds claims for volumes that are provisioned on the nodes of their pods.
func claims(c *cluster.Cluster, count int) {
	later := storagev1.VolumeBindingWaitForFirstConsumer
	c.StorageClasses.Set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: "csi.example.com", VolumeBindingMode: &later})
	for i := range count {
		c.Claims.Set(&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("claim-%d", i)},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: new("made"),
				Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		})
	}
}

// BenchmarkPreempt measures a preemption on 5,000 nodes filled with lower-priority pods, up to the
// removal of the victim and the nomination.
func BenchmarkPreempt(b *testing.B) {
	for _, mode := range []string{"plain", "volumes", "limited volumes", "volumes of a zone", "nominated", "budgets", "spread", "affinity", "anti", "victims' volumes", "victims' constraints"} {
		b.Run(mode, func(b *testing.B) { benchPreempt(b, mode) })
	}
}

func benchPreempt(b *testing.B, mode string) {
	c := benchCluster(5000, false)
	claims(c, 1)
	low := benchPod(0, "plain")
	victims := ""
	switch mode {
	case "limited volumes": // on all nodes
		mode = "volumes"
		for _, n := range c.Nodes {
			c.CSINodes.Set(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: "csi.example.com", NodeID: n.Name, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(39))},
			}}}})
		}
	case "volumes of a zone":
		mode = "volumes"
		claim, _ := c.Claims.Get("default", "claim-0")
		claim.Spec.VolumeName, claim.Annotations = "volume", map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		c.Claims.Set(claim)
		c.Volumes.Set(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume", Labels: map[string]string{v1.LabelTopologyZone: "z1"}}, Spec: v1.PersistentVolumeSpec{
			ClaimRef: &v1.ObjectReference{Namespace: "default", Name: "claim-0"}, AccessModes: claim.Spec.AccessModes,
		}})
	case "victims' volumes":
		victims, mode = "volumes", "plain"
		claims(c, 50_000)
	case "victims' constraints":
		victims, mode = "spread", "plain"
	}
	low.Labels = map[string]string{"app": "low"}
	low.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("3200m"), v1.ResourceMemory: resource.MustParse("6Gi")}
	for i := range 50_000 {
		pod := *low
		pod.Name, pod.UID = fmt.Sprintf("low-%d", i), types.UID(fmt.Sprintf("low-%d", i))
		pod.Spec.NodeName = fmt.Sprintf("node-%d", i%5000)
		pod.Status.StartTime = &metav1.Time{Time: metav1.Unix(int64(i), 0).Time}
		if mode == "budgets" {
			pod.Labels = map[string]string{"app": fmt.Sprint("app-", i%100)}
		}
		if victims != "" {
			of := benchPod(i, victims)
			pod.Spec.Volumes, pod.Spec.TopologySpreadConstraints = of.Spec.Volumes, of.Spec.TopologySpreadConstraints
		}
		c.SetPod(&pod)
	}
	budget := func(app, allowed int) { // budget with the status written by the disruption controller
		labels := map[string]string{"app": fmt.Sprint("app-", app)}
		c.Budgets.Set(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: labels["app"]}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(allowed)},
		})
	}
	if mode == "budgets" {
		for app := range 100 {
			budget(app, 100)
		}
	}
	d := New(c, plugins.Default(), 1)
	high := benchPod(0, mode)
	high.Spec.Priority = new(int32(100))
	high.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("3"), v1.ResourceMemory: resource.MustParse("1Gi")}
	i := 0
	for b.Loop() {
		if i == 40_000 || mode == "anti" && i == 4_000 {
			b.Skip("every pod has made room once")
		}
		pod := *high
		pod.UID = types.UID(fmt.Sprintf("high-%d", i))
		p := c.Pending(&pod)
		if decision := d.Decide(p); decision.Node != nil {
			b.Fatal("there is room")
		}
		found := d.Preempt(p)
		if len(found.Victims) != 1 {
			b.Fatalf("%d victims: %s", len(found.Victims), found.Message)
		}
		if mode == "budgets" {
			budget(i%100, 100+i%2)
		}
		if mode == "nominated" && i%4000 != 3999 { // the victims terminate slowly
			c.Nominate(p, found.Node.Name)
		} else {
			c.RemovePod(found.Victims[0].UID())
			c.Place(p, found.Node)
		}
		i++
	}
}
