// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// RoomFilter is a [Filter] that rejects nodes without room. For pods that need only CPU, memory and
// a pod slot, it reads only the [cluster.Room] of a node.
type RoomFilter interface {
	Filter
	// Others lists, by name, the requested resources checked in addition to CPU, memory and
	// ephemeral storage.
	Others(requests *cluster.Resources) []v1.ResourceName
	// Scored returns the resources configured for node scoring.
	Scored() []config.ResourceSpec
}

// RoomScorer is a [Scorer] with scores in 0..MaxScore that depend only on the room on the node.
type RoomScorer interface {
	Scorer
	ScoreByRoom(c *cluster.Cluster, p *cluster.Pod) RoomScore
}

// RoomScore scores nodes for a pod.
type RoomScore struct {
	Skips bool // the pod is not scored
	Only  bool // the score depends only on the node's Room, and Score computes it

	// CPU and Memory are the pod's amounts as counted by the score.
	CPU, Memory int64
	// Score scores a node for a pod with the given amounts. It does not allocate.
	Score func(room *cluster.Room, cpu, memory int64) int64
	Rule  RoomRule
}

// RoomRule identifies the formula of RoomScore.Score for bulk scoring, which applies the formula
// without a call per node. Score remains the definition.
type RoomRule uint8

const (
	// NoRule covers all other scores.
	NoRule RoomRule = iota
	// LeastAllocatedRule is the mean of LeastAllocatedScore over CPU and memory.
	LeastAllocatedRule
	// EvennessRule is EvennessScore.
	EvennessRule
)

// Amounts returns the CPU and memory counted by the rule for pods of a class that needs only CPU
// and memory; skips means the pods are not scored.
func (r RoomRule) Amounts(class *cluster.PodClass) (cpu, memory int64, skips bool) {
	if r == LeastAllocatedRule {
		return class.NonZeroCPU, class.NonZeroMemory, false
	}
	cpu, memory = class.Requests.MilliCPU, class.Requests.Memory
	return cpu, memory, cpu == 0 && memory == 0 // such a pod does not change the balance
}
