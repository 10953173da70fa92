package bench

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Mode is one kind of cluster and of pods.
type Mode struct {
	Name string
	// Goal is how many times faster than kube-scheduler's sampled decision Berth is to be, 5,000
	// nodes.
	Goal float64
	// Within is what a decision of Berth's may take, the first looks at new kinds of pods included;
	// 0 where the ratio is the goal.
	Within time.Duration
	// Bound is within how many seconds 1,000,000 pods are to be placed on 1,000,000 nodes; 0 where
	// that is no goal.
	Bound float64

	taint  bool
	shapes int
	apps   int // 0: as in most modes
	shape  func(spec *v1.PodSpec, app string, i int)
}

// Modes are those of the goals: pods of 10 apps with 100m and 200Mi each, nodes of 32 CPU, 64Gi and
// 110 pods in 3 zones.
var Modes = []Mode{
	{Name: "plain", Goal: 300, Bound: 10},
	{Name: "spread", Goal: 200, Bound: 30, shape: setSpread},
	{Name: "affinity", Goal: 200, Bound: 30, shape: setAffinity},
	{Name: "anti", Goal: 200, Bound: 30, shape: setAntiAffinity},
	{Name: "taints", Goal: 300, Bound: 30, shape: setToleration, taint: true},
	{Name: "shapes", Goal: 60, shapes: 500},

	// Diverse clusters: workloads with selectors of their own, pods of as many sizes.
	{Name: "apps-1000-spread", Within: diverse, apps: 1000, shape: setSpread},
	{Name: "apps-1000-affinity", Within: diverse, apps: 1000, shape: setAffinity},
	{Name: "apps-1000-anti", Within: diverse, apps: 1000, shape: setAntiAffinity},
	{Name: "apps-10000-spread", Within: diverse, apps: 10_000, shape: setSpread},
	{Name: "apps-10000-affinity", Within: diverse, apps: 10_000, shape: setAffinity},
	{Name: "apps-10000-anti", Within: diverse, apps: 10_000, shape: setAntiAffinity},
	{Name: "sizes-10000", Within: diverse, shapes: 10_000},
}

// selecting are the modes whose pods select those of their workload.
var selecting = []Mode{{Name: "spread", shape: setSpread}, {Name: "affinity", shape: setAffinity}, {Name: "anti", shape: setAntiAffinity}}

// diverse is the goal for clusters where much is new.
const diverse = 12 * time.Microsecond

const (
	few    = 10 // apps, in most modes
	groups = 5  // of nodes, in taints mode
	zones  = 3
)

// Amounts that all objects share, as those read from an API would not; nobody changes them.
var (
	nodeAmounts = v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("32"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
	}
	podAmounts = resourceList(100, 200)
	zero       = int32(0)
	high       = int32(1000)
)

func resourceList(milliCPU, mebibytes int64) v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(mebibytes<<20, resource.BinarySI),
	}
}

// countKinds is how many pods come before all kinds of them were there. Where there are ever new
// ones, they belong to what is measured.
func (m *Mode) countKinds() int {
	if m.Within > 0 {
		return few
	}
	return max(few, m.shapes)
}

// newNode makes the i-th node.
func (m *Mode) newNode(i int) *v1.Node {
	name := fmt.Sprintf("node-%d", i)
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
			v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%zones),
		}},
		Status: v1.NodeStatus{Allocatable: nodeAmounts},
	}
	if m.taint {
		n.Spec.Taints = []v1.Taint{{Key: "dedicated", Value: groupName(i), Effect: v1.TaintEffectNoSchedule}}
	}
	return n
}

// newPod makes the i-th pod, all parts of it its own, as they are when decoded.
func (m *Mode) newPod(i int) *v1.Pod {
	app := fmt.Sprintf("app-%d", i%max(few, m.apps))
	name := fmt.Sprintf("pod-%d", i)
	requests := podAmounts.DeepCopy()
	if m.shapes > 0 {
		requests = resourceList(int64(100+i%m.shapes), int64(200+i%m.shapes))
	}

	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": app}},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName, Priority: &zero,
			Containers: []v1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10",
				Resources: v1.ResourceRequirements{Requests: requests}}},
		},
	}

	if m.shape != nil {
		m.shape(&pod.Spec, app, i)
	}
	return pod
}

func groupName(i int) string { return fmt.Sprintf("group-%d", i%groups) }

func selectApp(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func setSpread(spec *v1.PodSpec, app string, _ int) {
	spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{
		{MaxSkew: 5, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selectApp(app)},
		{MaxSkew: 3, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: selectApp(app)},
	}
}

func setAffinity(spec *v1.PodSpec, app string, _ int) {
	term := v1.PodAffinityTerm{LabelSelector: selectApp(app), TopologyKey: v1.LabelTopologyZone}
	spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: term}},
	}}
}

func setAntiAffinity(spec *v1.PodSpec, app string, _ int) {
	spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{LabelSelector: selectApp(app), TopologyKey: v1.LabelHostname}}}}
}

func setToleration(spec *v1.PodSpec, _ string, i int) {
	spec.Tolerations = []v1.Toleration{{Key: "dedicated", Operator: v1.TolerationOpEqual, Value: groupName(i),
		Effect: v1.TaintEffectNoSchedule}}
}
