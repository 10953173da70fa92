// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// These constants describe the racks for gangs. The number of nodes in a rack is a tenth of the
// number of pods in a gang. Racks have five kinds of initial usage. A gang fits in the racks of
// three kinds, and leaves the least room in a rack of the kind tightRack.
const (
	rackLabel = "topology.example.com/rack"
	rackKinds = 5
	// tightRack is the kind of rack in which a gang leaves the least room. Both schedulers must
	// choose a rack of this kind.
	tightRack = 2

	memberCPU    = 2000 // millicores
	memberMemory = 4 << 10
	// perNode is the average number of members per node of a gang's rack.
	perNode = 10
)

// racks describes the racks for a number of nodes and a number of pods per gang.
type racks struct{ nodes, gang int }

// countAll returns the number of racks.
func (r racks) countAll() int { return max(r.nodes/((r.gang+perNode-1)/perNode), 1) }

// rackOf returns the rack of a node.
func (r racks) rackOf(node int) int { return node % r.countAll() }

// labelNode returns the labels with the rack of a node.
func (r racks) labelNode(node int) map[string]string {
	return map[string]string{rackLabel: fmt.Sprintf("rack-%d", r.rackOf(node))}
}

// usedOn returns the requests of the resident pods of a node. In most kinds of racks, nodes differ
// by the requests of one or two members.
func (r racks) usedOn(node int) (milliCPU, mebibytes int64) {
	place := int64(node / r.countAll())
	more := memberCPU * (place % 3)
	switch r.rackOf(node) % rackKinds {
	case 0: // too little CPU
		return 22_000 + more, 16 << 10
	case 1: // the rack's total resources suffice, but half of the nodes lack CPU and the other half lack memory
		if place%2 == 0 {
			return 22_000, 2 << 10
		}
		return 2000, 44 << 10
	case tightRack:
		return 6000 + more, 12 << 10
	case 3:
		return 2000 + more, 8 << 10
	}
	return 0, 0
}

// residentsPerNode is the number of resident pods per node, with equal requests.
const residentsPerNode = 2

// residentPods returns the pods that run during the whole measurement. Nodes without usage have
// none.
func (r racks) residentPods() (pods []*v1.Pod) {
	for i := range r.nodes * residentsPerNode {
		node := i / residentsPerNode
		if cpu, memory := r.usedOn(node); cpu > 0 {
			pod := boundPod(i, node, cpu/residentsPerNode, memory/residentsPerNode)
			pod.Spec.PriorityClassName = highClass
			pods = append(pods, pod)
		}
	}
	return pods
}

// memberPod returns the i-th pod of a gang.
func memberPod(i int) *v1.Pod {
	pod, group := plainPod(i), gangName
	pod.Spec.PriorityClassName = highClass
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	driver.Request(&pod.Spec, memberCPU, memberMemory)
	return pod
}

const (
	// lowerNamespace holds the lower-priority pods. Each gang must preempt some of them.
	lowerNamespace = "bench-gang-lower"
	// lowerCPU is the request of each lower-priority pod, equal to the requests of four members.
	lowerCPU = 4 * memberCPU
)

// lowerPods returns pods that fill all racks, so that no gang fits without preemption.
func (r racks) lowerPods() (pods []*v1.Pod) {
	for node := range r.nodes {
		used, _ := r.usedOn(node)
		for range (driver.NodeAmounts.Cpu().MilliValue() - used) / lowerCPU {
			pods = append(pods, boundPod(len(pods), node, lowerCPU, 200))
		}
	}
	return pods
}
