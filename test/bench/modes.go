// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Mode is one kind of cluster and of pods.
type Mode struct {
	driver.Mode
	// Goal is Berth's targeted speedup over kube-scheduler's sampled decision, with 5,000 nodes.
	Goal float64
	// Within limits the time of a decision by Berth, including the first evaluation of new kinds of
	// pods; 0 if the ratio is the goal.
	Within time.Duration
	// Bound is the targeted number of seconds for placing 1,000,000 pods on 1,000,000 nodes; 0
	// without a target.
	Bound float64

	taint bool
	kinds int // number of kinds of pods, if more than a few
}

// Modes lists the modes with goals: pods of 10 apps with 100m and 200Mi each, nodes of 32 CPU, 64Gi
// and 110 pods in 3 zones.
var Modes = listModes()

func listModes() []Mode {
	modes := []Mode{{Mode: driver.Plain, Goal: 300, Bound: 10}}
	for _, m := range driver.Selecting {
		modes = append(modes, Mode{Mode: m, Goal: 200, Bound: 30})
	}
	modes = append(modes, Mode{Mode: driver.Mode{Name: "taints", Shape: setToleration}, Goal: 300, Bound: 30, taint: true},
		Mode{Mode: driver.Shapes, Goal: 60, kinds: 500})
	for _, m := range driver.Diverse {
		modes = append(modes, Mode{Mode: m, Within: diverse})
	}
	return modes
}

// diverse is the goal for clusters with many new kinds of pods.
const diverse = 12 * time.Microsecond

// groups of nodes, in taints mode.
const groups = 5

var (
	zero = int32(0)
	high = int32(1000)
)

// countKinds returns the number of pods until all kinds have appeared. Constantly new kinds are
// part of the measurement.
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

// newPod returns the i-th pod, as read from the API.
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
