// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// MaxScore is the highest normalised score of a plugin, before its weight.
const MaxScore = 100

// Filter rejects nodes unable to run a pod.
type Filter interface {
	Name() string
	// Reads returns the parts of a node read by the filter.
	Reads() Part
	// Filter returns a judge of nodes for a pod. It may read the pod's spec. Only a [Spreader] or a
	// [TermCounter] may read the pod's labels, because pods that differ only in labels share the
	// verdicts of all other filters.
	Filter(c *cluster.Cluster, p *cluster.Pod) Judge
}

// Selective is implemented by filters and scorers without effect on most pods.
type Selective interface {
	// Applies reports whether the plugin may reject or score a node for pods of p's class. The
	// result for a class may change only if the device classes of the cluster change.
	Applies(c *cluster.Cluster, p *cluster.Pod) bool
}

// Steady is implemented by filters that return the same verdict for all simple pods
// (cluster.PodClass.Simple) with equal Static digests and equal CPU and memory requests.
type Steady interface {
	Steady()
}

// Part is a set of node parts.
type Part uint8

// The parts. A verdict that depends only on the interned parts (Labels, Taints, Images, Features)
// is the same for all nodes with equal interned parts.
const (
	Labels Part = 1 << iota // labels except the host name
	Taints                  // taints and cordon
	Images
	Features
	Identity // name and host name
	Contents // its pods and the remaining room
	// Objects are API objects other than nodes and pods. A filter that reads them runs for every
	// decision, after the filters that depend only on nodes, and judges only the nodes that those
	// filters passed. In preemption, its judge sees nodes with pods removed hypothetically.
	Objects
	// Others are the other nodes and their pods. In preemption the whole cluster is judged again
	// with the victims removed.
	Others
)

// Judge is a filter's verdict on one pod. The zero value passes every node.
type Judge struct {
	// Err is the reason the pod cannot be judged. It fails the scheduling attempt.
	Err error
	// All, if set, rejects every node up front (upstream: PreFilter rejects the pod).
	All *Rejection
	// Only, if not nil, restricts the search to the named nodes. All remaining nodes are rejected
	// without a reason (upstream: PreFilterResult).
	Only map[string]bool
	// Node judges one node, and returns nil if it can take the pod. A nil func passes every node
	// (upstream: Skip). The node may be a copy (cluster.Node.Copy) holding other pods than in the
	// cluster: a filter that does not read Others must judge the copy. The func must be safe for
	// concurrent use.
	Node func(n *cluster.Node) *Rejection
	// Surely, if not nil, reports that Node passes a node regardless of which of its pods are
	// removed, so that preemption can skip judging each choice of victims. It may return false even
	// if Node passes the node. Filters that do not read Contents need no Surely: their verdicts
	// hold for every choice.
	Surely func(n *cluster.Node) bool
	// Releasing, if not nil, reports whether claims of pods that have left the node are about to be
	// released, so that Node may pass the node soon without the removal of further pods.
	Releasing func(n *cluster.Node) bool
	// Again, if not nil, must be called after concurrent calls of Node. If it returns true, the
	// verdicts depended on the order of the calls, and all these nodes must be judged again, one
	// after the other.
	Again func() bool
}

// Attempted is a filter whose judges share a limit on their work in one scheduling attempt. Package
// decide calls BeginAttempt before it requests the first judge of an attempt.
type Attempted interface{ BeginAttempt() }

// Rejection holds the reasons a node cannot take a pod.
type Rejection struct {
	// Code is the stable CamelCase name of the first reason, for machines.
	Code string
	// Reasons are upstream's messages, counted by the FailedScheduling event.
	Reasons []string
	// Unresolvable rejections survive the removal of pods; preemption skips such nodes.
	Unresolvable bool
	// Held marks a node with devices held by claims. The rejection may end when the claims are
	// released, which follows the removal of their pods.
	Held bool
	// Pending marks a pod waiting for an effect of its own scheduling. Such a pod skips back-off
	// when woken.
	Pending bool
	// Err is the reason the node could not be judged. It fails the whole attempt.
	Err error
}

// Scorer scores the nodes passed by all filters.
type Scorer interface {
	Name() string
	// Score returns the scoring of the feasible nodes; there are at least two.
	Score(c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) Scoring
}

// PreScorers is the name of the placeholder for out-of-tree plugins at PreScore. It scores nothing
// itself.
const PreScorers = "PreScore"

// Scoring is a scorer's result for one pod. The zero value scores nothing (upstream: Skip) and is
// not listed.
type Scoring struct {
	Err error
	// Node scores one node.
	Node func(n *cluster.Node) (int64, error)
	// Exact, if not nil, returns the score of Node and a finer score. The node with the highest
	// finer score wins among nodes with equal totals, because whole numbers up to MaxScore are too
	// coarse.
	Exact func(n *cluster.Node) (score, fine int64)
	// Normalize scales the scores of all feasible nodes, in their order, to 0..MaxScore. It is nil
	// if the scores are already in range.
	Normalize func(feasible []*cluster.Node, scores []int64)
	// Finish replaces Normalize in plugins that can fail to normalise.
	Finish func(feasible []*cluster.Node, scores []int64) error
}

// Reserver is a plugin that claims a resource other than node capacity, such as a volume or a
// device, for a placed pod.
type Reserver interface {
	Name() string
	// Reserve claims the resource in the cluster's objects and returns a func that undoes the
	// change.
	Reserve(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (undo func(), err error)
}

// Gate keeps a pod out of the scheduling queue (upstream: PreEnqueue) while Admit returns a
// message.
type Gate interface {
	Name() string
	Admit(p *cluster.Pod) (message string)
}

// ObjectGate is a [Gate] that reads the cluster's objects. An empty message admits the pod. The pod
// belongs to the caller, which may modify it afterwards.
type ObjectGate interface {
	PreEnqueue(c *cluster.Cluster, p *cluster.Pod) (message string)
}

// FixedScorer is a [Scorer] with raw scores that depend only on a node's fixed parts (labels,
// taints and images), so that nodes with equal parts get equal scores. FewestBest and MostBest
// normalise by the highest score of the feasible nodes (see [Normalized]); FewestBest also reverses
// the result.
type FixedScorer interface {
	Scorer
	Scale() Scale
}

// Scale selects the mapping of raw scores to 0..MaxScore.
type Scale uint8

// The scales.
const (
	AsIs Scale = iota
	MostBest
	FewestBest
)

// ReadsPerPod is implemented by filters and scorers that can narrow the parts of a node they read
// for one pod.
type ReadsPerPod interface {
	ReadsFor(p *cluster.Pod) Part
}

// ScoreKeyer is implemented by fixed scorers with a further input besides pod and node. Equal keys
// mean equal scores.
type ScoreKeyer interface {
	ScoreKey(c *cluster.Cluster, p *cluster.Pod) string
}

// normalizeScores scales scores to 0..MaxScore by their maximum. reverse turns the highest score
// into the lowest.
func normalizeScores(scores []int64, reverse bool) {
	var highest int64
	for _, s := range scores {
		highest = max(highest, s)
	}
	for i, s := range scores {
		scores[i] = Normalized(s, highest, reverse)
	}
}

// Normalized is normalizeScores for one score, given the highest score of all feasible nodes. It
// serves code that scores many nodes in bulk. Division truncates, like upstream's.
//
//	scores 0 5 20   ->  0 25 100, reversed 100 75 0
//	scores 0 0 0    ->  0 0 0, reversed 100 100 100
func Normalized(score, highest int64, reverse bool) int64 {
	switch {
	case highest == 0 && reverse:
		return MaxScore
	case highest == 0:
		return score
	case reverse:
		return MaxScore - MaxScore*score/highest
	}
	return MaxScore * score / highest
}

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

// Extender judges all nodes passed by the filters in bulk. It represents another process, so a pod
// of interest to the extender is decided node by node, no faster than the response time of that
// process.
type Extender interface {
	Name() string
	// Interested reports whether the extender must be called for the pod.
	Interested(p *cluster.Pod) bool
	// Filter returns the rejected nodes and the reasons. Messages do not count a rejection without
	// reasons.
	Filter(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) (map[*cluster.Node]*Rejection, error)
	// Score returns the addition to each node's total, in the order of the nodes; nil adds nothing.
	// Its only error is a PendingQuery.
	Score(c *cluster.Cluster, p *cluster.Pod, nodes []*cluster.Node) ([]int64, error)
	// Spare filters the places for preemption, and may replace their victims.
	Spare(c *cluster.Cluster, p *cluster.Pod, places []Place) ([]Place, error)
}

// PendingQuery is the error of a pending query, for which the deciding goroutine must not wait. Run
// obtains the result on any goroutine. The pod is then decided again, with the Answers in its
// Attempt.
type PendingQuery struct {
	Target  string
	Run     func(ctx context.Context)
	Answers any
	// Done, if set, is called by the deciding goroutine after Run returned.
	Done func()
}

// Error implements error.
func (a *PendingQuery) Error() string { return fmt.Sprintf("%s was not asked yet", a.Target) }

// Preparer is a plugin with a computation about a pod, possibly slow, that precedes the decision.
type Preparer interface {
	// Prepare returns the query to run before the decision, outside the deciding goroutine, or nil.
	// Its Answers are empty.
	Prepare(c *cluster.Cluster, p *cluster.Pod) *PendingQuery
	// Forget discards prepared results. Prepare then depends only on later calls of the plugin.
	Forget()
}

// ExtenderName represents all extenders in the list of plugins rejecting a pod, as in upstream.
const ExtenderName = "Extender"

// Place is a node and the victims to evict from it, ordered from the most important.
type Place struct {
	Node       *cluster.Node
	Victims    []*cluster.Pod
	Violations int // number of violated disruption budgets
}
