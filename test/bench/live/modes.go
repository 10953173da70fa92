package live

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Mode is one kind of pods.
type Mode struct {
	driver.Mode
	// Times is how many times kube-scheduler's pods per second are the goal; 0 where none is set.
	Times float64

	// preempts: the nodes are full, and each pod has to make room for itself.
	preempts bool
	// memory is the share of kube-scheduler's memory that is the goal; 0: that of most modes.
	memory float64
	// byName: measured only where it is asked for, since kube-scheduler takes minutes for it.
	byName bool
}

// Modes are those of the goals. Most have pods of 10 apps with 100m and 200Mi each, nodes of 32
// CPUs, 64Gi and 110 pods in 3 zones.
var Modes = listModes()

func listModes() []Mode {
	modes := []Mode{{Mode: driver.Plain, Times: 4}, {Mode: driver.Shapes}}
	for _, m := range driver.Selecting {
		modes = append(modes, Mode{Mode: m})
	}
	modes[slices.IndexFunc(modes, func(m Mode) bool { return m.Name == driver.Spread.Name })].Times = 7
	modes = append(modes, Mode{Mode: driver.Mode{Name: "preemption", Shape: preempting}, preempts: true})
	for _, m := range driver.Diverse {
		modes = append(modes, Mode{Mode: m, memory: 1, byName: m.Apps >= 10_000})
	}
	return modes
}

const (
	highClass = "bench-high"
	// lowerPerNode pods fill a node in the preemption mode; one of them is what a preempting pod
	// needs.
	lowerPerNode = 2
)

// newNode makes the i-th node, as a kubelet that has just reported would have left it.
func newNode(i int, labels map[string]string) *v1.Node {
	node := driver.NewNode(i)
	maps.Copy(node.Labels, labels)
	driver.MakeReady(node, driver.NodeAmounts, time.Now())
	return node
}

// newPod makes the i-th pod of a mode. Deleted it must go at once: there is no kubelet to end it.
func (m *Mode) newPod(i int) *v1.Pod {
	pod := m.NewPod(i)
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
