package live

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Mode is one kind of pods.
type Mode struct {
	Name string
	// Times is how many times kube-scheduler's pods per second are the goal; 0 where none is set.
	Times float64

	apps  int // 0: few
	shape driver.Shape
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
	{Name: "shapes", shape: driver.Sizes(500)},
	{Name: "spread", Times: 7, shape: driver.Spread},
	{Name: "affinity", shape: driver.Affinity},
	{Name: "anti", shape: driver.AntiAffinity},
	{Name: "preemption", shape: preempting, preempts: true},

	// Diverse clusters: workloads with selectors of their own, pods of as many sizes.
	{Name: "apps-1000-spread", apps: 1000, shape: driver.Spread, memory: 1},
	{Name: "apps-1000-affinity", apps: 1000, shape: driver.Affinity, memory: 1},
	{Name: "apps-1000-anti", apps: 1000, shape: driver.AntiAffinity, memory: 1},
	{Name: "sizes-10000", shape: driver.Sizes(10_000), memory: 1},
	{Name: "apps-10000-spread", apps: 10_000, shape: driver.Spread, memory: 1, byName: true},
	{Name: "apps-10000-affinity", apps: 10_000, shape: driver.Affinity, memory: 1, byName: true},
	{Name: "apps-10000-anti", apps: 10_000, shape: driver.AntiAffinity, memory: 1, byName: true},
}

const (
	highClass = "bench-high"
	// lowerPerNode pods fill a node in the preemption mode; one of them is what a preempting pod
	// needs.
	lowerPerNode = 2
)

// newNode makes the i-th node, as a kubelet that has just reported would have left it.
func newNode(i int, labels map[string]string) *v1.Node {
	now, node := metav1.Now(), driver.NewNode(i)
	node.Labels[v1.LabelOSStable], node.Labels[v1.LabelArchStable] = "linux", "amd64"
	for key, value := range labels {
		node.Labels[key] = value
	}
	node.Status.Capacity = driver.NodeAmounts
	node.Status.Conditions = []v1.NodeCondition{{
		Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	return node
}

// newPod makes the i-th pod of a mode. Deleted it must go at once: there is no kubelet to end it.
func (m *Mode) newPod(i int) *v1.Pod {
	pod := driver.NewPod(i, m.apps, m.shape)
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	return pod
}

// plainPod makes the i-th of those without a shape.
func plainPod(i int) *v1.Pod { return (&Mode{}).newPod(i) }

// boundPod makes the i-th of those that are on a node from the beginning, and ask for so much.
func boundPod(i, node int, milliCPU, mebibytes int64) *v1.Pod {
	pod := plainPod(i)
	pod.Spec.NodeName = driver.NodeName(node)
	driver.Request(&pod.Spec, milliCPU, mebibytes)
	return pod
}

// lowerPod makes the i-th of the pods that fill the nodes of the preemption mode.
func lowerPod(i, nodes int) *v1.Pod {
	return boundPod(i, i%nodes, driver.NodeAmounts.Cpu().MilliValue()/lowerPerNode, 200)
}

// preempting asks for as much as one lower pod has.
func preempting(spec *v1.PodSpec, _ string, _ int) {
	spec.PriorityClassName = highClass
	driver.Request(spec, driver.NodeAmounts.Cpu().MilliValue()/lowerPerNode, 200)
}
