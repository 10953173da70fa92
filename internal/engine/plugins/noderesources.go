package plugins

import (
	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// resourceSpecs are the resources that a scorer weighs, as configured, after the defaults. A
// resource may be listed twice for NodeResourcesFit, and then weighs twice.
type resourceSpecs []config.ResourceSpec

// amounts are the amounts of one resource on one node: what its pods have taken, without the
// pending pod, and what there is in all. CPU is in thousandths, memory and storage in bytes. A
// resource with allocatable 0 is left out of the score.
type amounts struct{ allocated, allocatable int64 }

// resourceReader looks up the amounts that a scorer compares. It is made for one pod, and only
// reads afterwards, so that nodes can be scored in parallel.
type resourceReader struct {
	// wanted, and the indices that amountsOn takes, are in the order of specs.
	specs resourceSpecs
	// wanted is what the pod requests of each resource, by the rules of the scorer.
	wanted []int64
	// nonZero: CPU and memory of placed pods are counted with defaults for containers that request
	// none.
	nonZero bool
	cluster *cluster.Cluster
	// devices counts the devices that provide an extended resource on nodes that have none of it;
	// nil if none do.
	devices *deviceCounts
}

// amountsOn returns the amounts of the i-th resource on a node. A resource that only some nodes
// have, such as an extended one, counts only if the pod requests it: otherwise nodes with GPUs
// would score differently for pods that need none.
func (r *resourceReader) amountsOn(i int, n *cluster.Node) amounts {
	name := v1.ResourceName(r.specs[i].Name)
	room := &r.cluster.Rooms[n.Index]
	switch name {
	case v1.ResourceCPU:
		if r.nonZero {
			return amounts{room.NonZeroCPU, room.CPU}
		}
		return amounts{room.RequestedCPU, room.CPU}
	case v1.ResourceMemory:
		if r.nonZero {
			return amounts{room.NonZeroMemory, room.Memory}
		}
		return amounts{room.RequestedMemory, room.Memory}
	case v1.ResourceEphemeralStorage:
		return amounts{n.Requested.EphemeralStorage, n.Size.EphemeralStorage}
	}

	if r.wanted[i] == 0 && cluster.IsScalar(name) {
		return amounts{}
	}
	// A node without the resource of its own may offer it through devices of a DeviceClass.
	allocatable := n.Size.Scalars[name]
	if allocatable == 0 && r.devices != nil {
		return r.devices.countOn(n, name)
	}
	return amounts{n.Requested.Scalars[name], allocatable}
}

// roomOnly reports whether only CPU and memory count for the pod. A resource that is listed twice
// is not the simple case that [RoomScore] stands for.
func (r *resourceReader) roomOnly() bool {
	seen := map[v1.ResourceName]bool{}
	for i := range r.specs {
		name := v1.ResourceName(r.specs[i].Name)
		isRoom := name == v1.ResourceCPU || name == v1.ResourceMemory
		if isRoom && seen[name] || !isRoom && (r.wanted[i] != 0 || !cluster.IsScalar(name)) {
			return false
		}
		seen[name] = true
	}
	return true
}

// cpuAndMemory returns what counts of these two for the pod, 0 for one that is not scored.
func (r *resourceReader) cpuAndMemory() (cpu, memory int64) {
	for i := range r.specs {
		switch v1.ResourceName(r.specs[i].Name) {
		case v1.ResourceCPU:
			cpu = r.wanted[i]
		case v1.ResourceMemory:
			memory = r.wanted[i]
		}
	}
	return cpu, memory
}

// requestsOf lists what the pod requests of each resource, in the order of s, counted by the rules
// of the scorer: with defaults (rules.ScoreRequests) or without (rules.Requests).
func (s resourceSpecs) requestsOf(p *cluster.Pod, rule func(*v1.Pod) v1.ResourceList) []int64 {
	names := make([]v1.ResourceName, len(s))
	for i := range s {
		names[i] = v1.ResourceName(s[i].Name)
	}
	list := rules.RequestsOf(&v1.Pod{Spec: p.Spec().Object()}, rule, names...)
	wanted := make([]int64, len(s))
	for i, name := range names {
		wanted[i] = rules.Amount(name, list[name])
	}
	return wanted
}

// weightOf returns the configured weight of a resource, the sum if it is listed twice, 0 if it does
// not count.
func (s resourceSpecs) weightOf(name v1.ResourceName) (sum int64) {
	for i := range s {
		if s[i].Name == string(name) {
			sum += s[i].Weight
		}
	}
	return sum
}
