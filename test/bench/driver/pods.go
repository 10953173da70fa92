package driver

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods of most modes are of a few apps; nodes are in zones.
const (
	Few   = 10
	zones = 3
)

// NodeAmounts are those of each node. All share them, since nobody changes them.
var NodeAmounts = v1.ResourceList{
	v1.ResourceCPU: resource.MustParse("32"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
}

// Amounts are thousandths of a CPU, and MiB.
func Amounts(milliCPU, mebibytes int64) v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(mebibytes<<20, resource.BinarySI),
	}
}

// NodeName is that of the i-th node.
func NodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// NewNode makes the i-th node.
func NewNode(i int) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName(i), Labels: map[string]string{
			v1.LabelHostname: NodeName(i), v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%zones),
		}},
		Status: v1.NodeStatus{Allocatable: NodeAmounts},
	}
}

// MakeReady has the node look as if a kubelet with these amounts had been ready since a time.
func MakeReady(node *v1.Node, amounts v1.ResourceList, since time.Time) {
	at := metav1.NewTime(since)
	node.Labels[v1.LabelOSStable], node.Labels[v1.LabelArchStable] = "linux", "amd64"
	node.Status = v1.NodeStatus{Capacity: amounts, Allocatable: amounts, Conditions: []v1.NodeCondition{{
		Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
		LastHeartbeatTime: at, LastTransitionTime: at,
	}}}
}

// Mode is a kind of pods, after which benches name their measurements.
type Mode struct {
	Name  string
	Apps  int   // of which the pods are; 0: few
	Shape Shape // nil: they are plain
}

// Shape is what the pods of a mode have that plain ones have not.
type Shape func(spec *v1.PodSpec, app string, i int)

// The modes of most benches.
var (
	Plain  = Mode{Name: "plain"}
	Spread = Mode{Name: "spread", Shape: spread}
	// Selecting are those whose pods select the others of their app.
	Selecting = []Mode{Spread, {Name: "affinity", Shape: affinity}, {Name: "anti", Shape: antiAffinity}}
	Shapes    = Mode{Name: "shapes", Shape: sizes(500)}
	// Diverse are those of clusters where much is new.
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

// NewPod makes the i-th pod of the mode, with 100m and 200Mi and what its shape adds. All parts of
// it are its own, as they are when decoded.
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

// Request has a pod ask for so much.
func Request(spec *v1.PodSpec, milliCPU, mebibytes int64) {
	spec.Containers[0].Resources.Requests = Amounts(milliCPU, mebibytes)
}

// sizes has pods ask for so many different amounts.
func sizes(count int) Shape {
	return func(spec *v1.PodSpec, _ string, i int) { Request(spec, int64(100+i%count), int64(200+i%count)) }
}

// OfApp selects the pods of an app.
func OfApp(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// spread has the pods of an app spread over zones, and if possible over nodes.
func spread(spec *v1.PodSpec, app string, _ int) {
	spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{
		{MaxSkew: 5, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: OfApp(app)},
		{MaxSkew: 3, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: OfApp(app)},
	}
}

// affinity has the pods of an app prefer the zones of the others.
func affinity(spec *v1.PodSpec, app string, _ int) {
	term := v1.PodAffinityTerm{LabelSelector: OfApp(app), TopologyKey: v1.LabelTopologyZone}
	spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: term}},
	}}
}

// antiAffinity has the pods of an app repel each other from nodes.
func antiAffinity(spec *v1.PodSpec, app string, _ int) {
	spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{LabelSelector: OfApp(app), TopologyKey: v1.LabelHostname}}}}
}
