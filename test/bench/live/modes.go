package live

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Mode is one kind of pods.
type Mode struct {
	Name string
	// Times is how many times kube-scheduler's pods per second are the goal; 0 where none is set.
	Times float64

	apps  int // 0: few
	shape func(spec *v1.PodSpec, app string, i int)
	// preempts: the nodes are full, and each pod has to make room for itself.
	preempts bool
	// memory is the share of kube-scheduler's memory that is the goal; 0: that of most modes.
	memory float64
	// byName: measured only where it is asked for, since kube-scheduler takes minutes for it.
	byName bool
}

// Modes are those of the goals. Most have pods of 10 apps with 100m and 200Mi each, nodes of 32
// CPUs, 64Gi and 110 pods in 3 zones.
var Modes = []Mode{
	{Name: "plain", Times: 4},
	{Name: "shapes", shape: setShapes(500)},
	{Name: "spread", Times: 7, shape: setSpread},
	{Name: "affinity", shape: setAffinity},
	{Name: "anti", shape: setAntiAffinity},
	{Name: "preemption", shape: setPreempting, preempts: true},

	// Diverse clusters: workloads with selectors of their own, pods of as many sizes.
	{Name: "apps-1000-spread", apps: 1000, shape: setSpread, memory: 1},
	{Name: "apps-1000-affinity", apps: 1000, shape: setAffinity, memory: 1},
	{Name: "apps-1000-anti", apps: 1000, shape: setAntiAffinity, memory: 1},
	{Name: "sizes-10000", shape: setShapes(10_000), memory: 1},
	{Name: "apps-10000-spread", apps: 10_000, shape: setSpread, memory: 1, byName: true},
	{Name: "apps-10000-affinity", apps: 10_000, shape: setAffinity, memory: 1, byName: true},
	{Name: "apps-10000-anti", apps: 10_000, shape: setAntiAffinity, memory: 1, byName: true},
}

const (
	few       = 10 // apps
	zones     = 3
	highClass = "bench-high"
	// lowerPerNode pods fill a node in the preemption mode; one of them is what a preempting pod
	// needs.
	lowerPerNode = 2
)

var (
	nodeAmounts = v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("32"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
	}
	// A pod that is deleted must go at once: there is no kubelet to end it.
	noGrace int64
)

func resourceList(milliCPU, mebibytes int64) v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(mebibytes<<20, resource.BinarySI),
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// newNode makes the i-th node, as a kubelet that has just reported would have left it.
func newNode(i int) *v1.Node {
	now := metav1.Now()
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			v1.LabelHostname: nodeName(i), v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%zones),
			v1.LabelOSStable: "linux", v1.LabelArchStable: "amd64",
		}},
		Status: v1.NodeStatus{
			Capacity: nodeAmounts, Allocatable: nodeAmounts,
			Conditions: []v1.NodeCondition{{
				Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
}

// newPod makes the i-th pod of a mode.
func (m *Mode) newPod(i int) *v1.Pod {
	app := fmt.Sprintf("app-%d", i%max(few, m.apps))
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": app}},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: &noGrace,
			Containers: []v1.Container{{
				Name: "main", Image: "registry.k8s.io/pause:3.10", Resources: v1.ResourceRequirements{Requests: resourceList(100, 200)},
			}},
		},
	}
	if m.shape != nil {
		m.shape(&pod.Spec, app, i)
	}
	return pod
}

// lowerPod makes the i-th of the pods that fill the nodes of the preemption mode.
func lowerPod(i, nodes int) *v1.Pod {
	pod := (&Mode{}).newPod(i)
	pod.Spec.NodeName = nodeName(i % nodes)
	pod.Spec.Containers[0].Resources.Requests = resourceList(nodeAmounts.Cpu().MilliValue()/lowerPerNode, 200)
	return pod
}

func selectApp(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func setShapes(count int) func(*v1.PodSpec, string, int) {
	return func(spec *v1.PodSpec, _ string, i int) {
		spec.Containers[0].Resources.Requests = resourceList(int64(100+i%count), int64(200+i%count))
	}
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

// setPreempting asks for as much as one lower pod has.
func setPreempting(spec *v1.PodSpec, _ string, _ int) {
	spec.PriorityClassName = highClass
	spec.Containers[0].Resources.Requests = resourceList(nodeAmounts.Cpu().MilliValue()/lowerPerNode, 200)
}
