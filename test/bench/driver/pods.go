// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Few is the number of apps in most modes; zones is the number of zones.
const (
	Few   = 10
	zones = 3
)

// NodeAmounts holds the resources of each node. It is shared and must not be modified.
var NodeAmounts = v1.ResourceList{
	v1.ResourceCPU: resource.MustParse("32"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
}

// Amounts returns a list with CPU and memory.
func Amounts(milliCPU, mebibytes int64) v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(mebibytes<<20, resource.BinarySI),
	}
}

// NodeName returns the name of the i-th node.
func NodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// NewNode returns the i-th node.
func NewNode(i int) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName(i), Labels: map[string]string{
			v1.LabelHostname: NodeName(i), v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%zones),
		}},
		Status: v1.NodeStatus{Allocatable: NodeAmounts},
	}
}

// MakeReady sets the status that a kubelet with these resources reports, ready since the given
// time.
func MakeReady(node *v1.Node, amounts v1.ResourceList, since time.Time) {
	at := metav1.NewTime(since)
	node.Labels[v1.LabelOSStable], node.Labels[v1.LabelArchStable] = "linux", "amd64"
	node.Status = v1.NodeStatus{Capacity: amounts, Allocatable: amounts, Conditions: []v1.NodeCondition{{
		Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
		LastHeartbeatTime: at, LastTransitionTime: at,
	}}}
}

// Mode is a kind of pods; benches name their measurements after it.
type Mode struct {
	Name  string
	Apps  int   // number of apps of the pods; 0 means Few
	Shape Shape // nil for plain pods
}

// Shape adds the fields of a mode to a plain pod.
type Shape func(spec *v1.PodSpec, app string, i int)

// The modes of most benches.
var (
	Plain  = Mode{Name: "plain"}
	Spread = Mode{Name: "spread", Shape: spread}
	// Selecting lists the modes with pods that select the pods of their app.
	Selecting = []Mode{Spread, {Name: "affinity", Shape: affinity}, {Name: "anti", Shape: antiAffinity}}
	Shapes    = Mode{Name: "shapes", Shape: sizes(500)}
	// Diverse lists the modes of clusters in which new kinds of pods appear often.
	Diverse = listDiverse()
)

func listDiverse() (modes []Mode) {
	for _, apps := range []int{1000, 10_000} {
		for _, m := range Selecting {
			modes = append(modes, Mode{Name: fmt.Sprintf("apps-%d-%s", apps, m.Name), Apps: apps, Shape: m.Shape})
		}
	}
	return append(modes, Mode{Name: "sizes-10000", Shape: sizes(10_000)})
}

// NewPod returns the i-th pod of the mode, with requests of 100m and 200Mi and the additions of the
// mode's shape. Like a decoded pod, it shares no data with other pods.
func (m *Mode) NewPod(i int) *v1.Pod {
	app := fmt.Sprintf("app-%d", i%max(Few, m.Apps))
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": app}},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "main", Image: "registry.k8s.io/pause:3.10", Resources: v1.ResourceRequirements{Requests: Amounts(100, 200)},
		}}},
	}
	if m.Shape != nil {
		m.Shape(&pod.Spec, app, i)
	}
	return pod
}

// Request sets a pod's requests.
func Request(spec *v1.PodSpec, milliCPU, mebibytes int64) {
	spec.Containers[0].Resources.Requests = Amounts(milliCPU, mebibytes)
}

// sizes returns a shape with the given number of different requests.
func sizes(count int) Shape {
	return func(spec *v1.PodSpec, _ string, i int) { Request(spec, int64(100+i%count), int64(200+i%count)) }
}

// OfApp selects the pods of an app.
func OfApp(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// spread spreads the pods of an app over zones, and if possible over nodes.
func spread(spec *v1.PodSpec, app string, _ int) {
	spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{
		{MaxSkew: 5, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: OfApp(app)},
		{MaxSkew: 3, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: OfApp(app)},
	}
}

// affinity makes the pods of an app prefer each other's zones.
func affinity(spec *v1.PodSpec, app string, _ int) {
	term := v1.PodAffinityTerm{LabelSelector: OfApp(app), TopologyKey: v1.LabelTopologyZone}
	spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: term}},
	}}
}

// antiAffinity keeps the pods of an app on different nodes.
func antiAffinity(spec *v1.PodSpec, app string, _ int) {
	spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{LabelSelector: OfApp(app), TopologyKey: v1.LabelHostname}}}}
}
