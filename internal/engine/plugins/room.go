package plugins

import (
	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// RoomFilter is a [Filter] that rejects nodes without room. Of a node it counts for pods that need
// only CPU, memory and a pod slot no more than its [cluster.Room].
type RoomFilter interface {
	Filter
	// Others lists, by name, the resources beside CPU, memory and ephemeral storage that such
	// requests ask of a node.
	Others(requests *cluster.Resources) []v1.ResourceName
	// Scored are the resources by which it scores nodes, as configured.
	Scored() []config.ResourceSpec
}

// RoomScorer is a [Scorer] whose scores, from 0 to MaxScore, depend on the room on the node alone.
type RoomScorer interface {
	Scorer
	ScoreByRoom(c *cluster.Cluster, p *cluster.Pod) RoomScore
}

// RoomScore is how a RoomScorer scores nodes for a pod.
type RoomScore struct {
	Skips bool // the pod is not scored
	Only  bool // of a node nothing but its Room counts, so that Of is the score

	// CPU and Memory are what the score counts for the pod.
	CPU, Memory int64
	// Of scores a node for a pod for which this much counts. It does not allocate.
	Of   func(room *cluster.Room, cpu, memory int64) int64
	Rule RoomRule
}

// RoomRule tells code that scores very many nodes, or many at once, what Of computes, so that it
// can compute the same without a call per node. Of stays the definition.
type RoomRule uint8

const (
	// NoRule is that of all other scores.
	NoRule RoomRule = iota
	// LeastAllocatedRule is the mean of LeastAllocatedScore over CPU and memory.
	LeastAllocatedRule
	// EvennessRule is EvennessScore.
	EvennessRule
)

// Amounts returns the CPU and memory that a score by the rule counts for pods of a class that needs
// only these; skips, that they are not scored.
func (r RoomRule) Amounts(class *cluster.PodClass) (cpu, memory int64, skips bool) {
	if r == LeastAllocatedRule {
		return class.NonZeroCPU, class.NonZeroMemory, false
	}
	cpu, memory = class.Requests.MilliCPU, class.Requests.Memory
	return cpu, memory, cpu == 0 && memory == 0 // such a pod does not change the balance
}
