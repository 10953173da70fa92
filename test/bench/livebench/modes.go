// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Mode is a kind of pods with its goals.
type Mode struct {
	driver.Mode
	// Times is the targeted multiple of kube-scheduler's pods per second; 0 without a target.
	Times float64

	// preempts is set if the nodes are full and each pod must preempt.
	preempts bool
	// memory is the targeted share of kube-scheduler's memory; 0 means memoryGoal.
	memory float64
	// byName is set if the mode is measured only on request, since kube-scheduler takes minutes for
	// it.
	byName bool
}

// Modes lists the modes with goals. In most modes the pods belong to 10 apps and request 100m and
// 200Mi each. The nodes have 32 CPUs, 64Gi and 110 pod slots, and are in 3 zones.
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
	// lowerPerNode is the number of lower pods that fill a node in the preemption mode. A
	// preempting pod needs the room of one of them.
	lowerPerNode = 2
)

// newNode returns the i-th node with the status of a healthy kubelet.
func newNode(i int, labels map[string]string) *v1.Node {
	node := driver.NewNode(i)
	maps.Copy(node.Labels, labels)
	driver.MakeReady(node, driver.NodeAmounts, time.Now())
	return node
}

// newPod returns the i-th pod of a mode. Its grace period is 0, because no kubelet would complete
// its deletion.
func (m *Mode) newPod(i int) *v1.Pod {
	pod := m.NewPod(i)
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	return pod
}

// plainPod returns the i-th pod without a shape.
func plainPod(i int) *v1.Pod { return (&Mode{}).newPod(i) }

// boundPod returns the i-th pod, bound to a node from its creation, with the given requests.
func boundPod(i, node int, milliCPU, mebibytes int64) *v1.Pod {
	pod := plainPod(i)
	pod.Spec.NodeName = driver.NodeName(node)
	driver.Request(&pod.Spec, milliCPU, mebibytes)
	return pod
}

// lowerPod returns the i-th of the pods that fill the nodes of the preemption mode.
func lowerPod(i, nodes int) *v1.Pod {
	return boundPod(i, i%nodes, driver.NodeAmounts.Cpu().MilliValue()/lowerPerNode, 200)
}

// preempting gives a pod the high priority and the requests of one lower pod.
func preempting(spec *v1.PodSpec, _ string, _ int) {
	spec.PriorityClassName = highClass
	driver.Request(spec, driver.NodeAmounts.Cpu().MilliValue()/lowerPerNode, 200)
}
