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

// Mode is one kind of pods.
type Mode struct {
	driver.Mode
	// Times is the targeted multiple of kube-scheduler's pods per second; 0 without a target.
	Times float64

	// preempts: the nodes are full, and each pod must preempt.
	preempts bool
	// memory is the targeted share of kube-scheduler's memory; 0: the share of most modes.
	memory float64
	// byName: measured only on request, since kube-scheduler takes minutes for it.
	byName bool
}

// Modes lists the modes with goals. Most have pods of 10 apps with 100m and 200Mi each, nodes of 32
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
	// lowerPerNode pods fill a node in the preemption mode; a preempting pod needs the room of one.
	lowerPerNode = 2
)

// newNode returns the i-th node, in the state left by a freshly reporting kubelet.
func newNode(i int, labels map[string]string) *v1.Node {
	node := driver.NewNode(i)
	maps.Copy(node.Labels, labels)
	driver.MakeReady(node, driver.NodeAmounts, time.Now())
	return node
}

// newPod returns the i-th pod of a mode. Without a kubelet, it must disappear immediately on
// deletion.
func (m *Mode) newPod(i int) *v1.Pod {
	pod := m.NewPod(i)
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	return pod
}

// plainPod returns the i-th pod without a shape.
func plainPod(i int) *v1.Pod { return (&Mode{}).newPod(i) }

// boundPod returns the i-th initially bound pod, with these requests.
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

// preempting requests as much as one lower pod.
func preempting(spec *v1.PodSpec, _ string, _ int) {
	spec.PriorityClassName = highClass
	driver.Request(spec, driver.NodeAmounts.Cpu().MilliValue()/lowerPerNode, 200)
}
