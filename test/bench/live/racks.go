package live

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Racks of the nodes of gangs. A rack has a tenth as many nodes as a gang has pods, and is one of
// five kinds by what runs there before: a gang fits in three of them, and in tightRack it leaves
// the least room.
const (
	rackLabel = "topology.example.com/rack"
	rackKinds = 5
	// tightRack is the kind of rack that is fullest with the gang in it: where both schedulers have
	// to place it.
	tightRack = 2

	memberCPU    = 2000 // thousandths
	memberMemory = 4 << 10
	// perNode is how many members a node of a rack gets on average.
	perNode = 10
)

func rackName(rack int) string { return fmt.Sprintf("rack-%d", rack) }

// countOfRacks is how many there are.
func (b *bench) countOfRacks() int { return max(b.Nodes/((b.Gang+perNode-1)/perNode), 1) }

// rackOf is the rack of a node.
func (b *bench) rackOf(node int) int { return node % b.countOfRacks() }

// usedOn is what pods that do not move use on a node, in thousandths of a CPU and MiB. Nodes of a
// rack differ by the room of a member.
func (b *bench) usedOn(node int) (milliCPU, mebibytes int64) {
	place := int64(node / b.countOfRacks())
	more := memberCPU * (place % 3)
	switch b.rackOf(node) % rackKinds {
	case 0: // there is too little CPU
		return 22_000 + more, 16 << 10
	case 1: // enough of each in sum, but half of the nodes lack CPU, and the others memory
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

// residentsPerNode share what is used on a node.
const residentsPerNode = 2

// residentPod makes the i-th of the pods that do not move, or none where nothing runs.
func (b *bench) residentPod(i int) *v1.Pod {
	node := i / residentsPerNode
	cpu, memory := b.usedOn(node)
	if cpu == 0 {
		return nil
	}
	pod := (&Mode{}).newPod(i)
	pod.Spec.NodeName, pod.Spec.PriorityClassName = nodeName(node), highClass
	pod.Spec.Containers[0].Resources.Requests = resourceList(cpu/residentsPerNode, memory/residentsPerNode)
	return pod
}

// memberPod makes the i-th pod of a gang.
func memberPod(i int) *v1.Pod {
	pod := (&Mode{}).newPod(i)
	group := gangName
	pod.Spec.PriorityClassName = highClass
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	pod.Spec.Containers[0].Resources.Requests = resourceList(memberCPU, memberMemory)
	return pod
}

// bindResidents binds the pods that do not move.
func (b *bench) bindResidents(ctx context.Context) error {
	if _, err := b.createNamespace(ctx, fillNamespace); err != nil {
		return err
	}
	var pods []*v1.Pod
	for i := range b.Nodes * residentsPerNode {
		if pod := b.residentPod(i); pod != nil {
			pods = append(pods, pod)
		}
	}
	b.printProgress("%s pods run already, in %d racks", formatThousands(len(pods)), b.countOfRacks())
	return b.createPods(ctx, fillNamespace, len(pods), func(i int) *v1.Pod { return pods[i] })
}

const (
	// lowerNamespace has the pods of which a gang has to preempt some.
	lowerNamespace = "bench-gang-lower"
	// lowerCPU is what each of them requests: the room of four members.
	lowerCPU = 4 * memberCPU
)

// lowerPods take the room of all racks, so that a gang fits in none without preemption.
func (b *bench) lowerPods() (pods []*v1.Pod) {
	for node := range b.Nodes {
		used, _ := b.usedOn(node)
		for range (nodeAmounts.Cpu().MilliValue() - used) / lowerCPU {
			pod := (&Mode{}).newPod(len(pods))
			pod.Spec.NodeName = nodeName(node)
			pod.Spec.Containers[0].Resources.Requests = resourceList(lowerCPU, 200)
			pods = append(pods, pod)
		}
	}
	return pods
}
