// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Mode is a kind of cluster and pods, with its goals.
type Mode struct {
	driver.Mode
	// Goal is the targeted ratio of the cost of kube-scheduler's sampled decision to the cost of
	// Berth's decision, with 5,000 nodes.
	Goal float64
	// Fills includes the mode in the placement of a million pods on a million empty nodes.
	Fills bool

	diverse bool // new kinds of pods appear often, and their first evaluation is a part of the cost
	taint   bool
	kinds   int // number of kinds of pods, if more than driver.Few
}

// Modes lists the modes with goals. In most modes the pods belong to 10 apps and request 100m and
// 200Mi each. The nodes have 32 CPUs, 64Gi and 110 pod slots, and are in 3 zones.
var Modes = listModes()

func listModes() []Mode {
	modes := []Mode{{Mode: driver.Plain, Goal: 300, Fills: true}}
	for _, m := range driver.Selecting {
		modes = append(modes, Mode{Mode: m, Goal: 200, Fills: true})
	}
	modes = append(modes, Mode{Mode: driver.Mode{Name: "taints", Shape: setToleration}, Goal: 300, Fills: true, taint: true},
		Mode{Mode: driver.Shapes, Goal: 60, kinds: 500})
	for _, m := range driver.Diverse {
		modes = append(modes, Mode{Mode: m, Goal: diverseGoal, diverse: true})
	}
	return modes
}

// Goals that do not depend on the machine: ratios of two costs measured in one run.
const (
	diverseGoal = 100 // Mode.Goal of modes in which new kinds of pods appear often
	// growthGoal limits the cost of a decision on the largest cluster relative to one with
	// Report.Nodes, and fillGoal the cost of a pod on many empty nodes, including the first
	// decision of each kind and the collection of garbage.
	growthGoal, fillGoal = 2, 4
)

// groups is the number of node groups in the taints mode.
const groups = 5

var (
	zero = int32(0)
	high = int32(1000)
)

// countKinds returns the number of pods after which all kinds have appeared. In the modes of
// driver.Diverse, new kinds are a part of the measurement and do not count.
func (m *Mode) countKinds() int { return max(driver.Few, m.kinds) }

// newNode returns the i-th node.
func (m *Mode) newNode(i int) *v1.Node {
	n := driver.NewNode(i)
	n.UID = types.UID(n.Name)
	if m.taint {
		n.Spec.Taints = []v1.Taint{{Key: "dedicated", Value: groupName(i), Effect: v1.TaintEffectNoSchedule}}
	}
	return n
}

// newNodes returns n nodes.
func (m *Mode) newNodes(n int) []*v1.Node {
	list := make([]*v1.Node, n)
	for i := range list {
		list[i] = m.newNode(i)
	}
	return list
}

// newPod returns the i-th pod with the fields that the API server sets.
func (m *Mode) newPod(i int) *v1.Pod {
	pod := m.NewPod(i)
	pod.Namespace, pod.UID = "default", types.UID(pod.Name)
	pod.Spec.SchedulerName, pod.Spec.Priority = v1.DefaultSchedulerName, &zero
	return pod
}

func groupName(i int) string { return fmt.Sprintf("group-%d", i%groups) }

func setToleration(spec *v1.PodSpec, _ string, i int) {
	spec.Tolerations = []v1.Toleration{{Key: "dedicated", Operator: v1.TolerationOpEqual, Value: groupName(i),
		Effect: v1.TaintEffectNoSchedule}}
}
