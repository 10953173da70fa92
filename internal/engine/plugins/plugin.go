// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
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
