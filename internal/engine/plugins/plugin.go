package plugins

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// MaxScore is the highest normalised score of a plugin, before its weight.
const MaxScore = 100

// Filter rejects nodes that a pod cannot run on.
type Filter interface {
	Name() string
	// Reads returns the parts of a node that the verdict depends on.
	Reads() Part
	// Filter returns a judge of nodes for a pod. It may look at the pod's spec and not at its
	// labels: pods that differ only in labels share the answer.
	Filter(c *cluster.Cluster, p *cluster.Pod) Judge
}

// Selective is implemented by filters and scorers that have no effect on most pods.
type Selective interface {
	// Applies reports whether the plugin may reject or score a node for pods of p's class. The
	// answer may change only when device classes do.
	Applies(c *cluster.Cluster, p *cluster.Pod) bool
}

// Steady is implemented by filters that give the same answer for all simple pods that need the same
// from single nodes (cluster.PodClass.Simple and Static), apart from how much CPU and memory these
// request.
type Steady interface {
	Steady()
}

// Part is a set of the parts of a node.
type Part uint8

// The parts. A verdict that depends only on the interned ones (Labels, Taints, Images, Features) is
// the same for all nodes that share these.
const (
	Labels Part = 1 << iota // labels but for the host name
	Taints                  // taints and cordon
	Images
	Features
	Identity // name and host name
	Contents // the pods on it and the room they leave
	// Objects are API objects other than nodes and pods. The filter is asked again for every
	// decision, after those that depend only on nodes, and about the nodes that these let pass. In
	// preemption its judge is asked about nodes from which pods have been removed hypothetically.
	Objects
	// Others are other nodes and the pods there. In preemption the cluster as a whole is judged
	// again, with the victims removed.
	Others
)

// Judge is a filter's answer for one pod. The zero value lets every node pass.
type Judge struct {
	// Err is why the pod cannot be judged. The attempt to schedule it fails with it.
	Err error
	// All, if set, rejects every node before any is looked at (upstream: PreFilter rejects the
	// pod).
	All *Rejection
	// Only, if not nil, has the names of the only nodes to be considered. The others are rejected
	// without a reason (upstream: PreFilterResult).
	Only map[string]bool
	// Node judges one node: nil if it can take the pod. A nil func lets every node pass (upstream:
	// Skip). The node may be a copy (cluster.Node.Copy) with other pods than the cluster has there:
	// a filter that does not read Others must judge it as passed. The func is called from several
	// goroutines at once.
	Node func(n *cluster.Node) *Rejection
	// Surely, if not nil, reports that Node lets a node pass whichever of its pods are removed, so
	// that preemption need not ask about each choice of victims. It may be false where Node does.
	// What a filter that does not read Contents says holds for all of them anyway.
	Surely func(n *cluster.Node) bool
	// Again, if not nil, must be called after Node was called from several goroutines at once. If
	// it returns true, the answers depended on the order of the calls, and all these nodes have to
	// be judged again, one after the other.
	Again func() bool
}

// Attempted is a filter whose judges are bounded by what it has spent on the attempt to schedule a
// pod. Package decide calls BeginAttempt before it asks for the first judge of an attempt.
type Attempted interface{ BeginAttempt() }

// Rejection says why a node cannot take a pod.
type Rejection struct {
	// Code is the stable CamelCase name of the first reason, for machines.
	Code string
	// Reasons are upstream's messages, which the FailedScheduling event counts.
	Reasons []string
	// Unresolvable: removing pods would not change it, so preemption need not try.
	Unresolvable bool
	// Pending: the pod waits for something that happens because it is being scheduled, and need not
	// back off when it is woken.
	Pending bool
	// Err is why the node could not be judged. The whole attempt fails with it.
	Err error
}

// Scorer scores the nodes that all filters let pass.
type Scorer interface {
	Name() string
	// Score returns how to score the nodes that passed, of which there are at least two.
	Score(c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) Scoring
}

// PreScorers is the name of the scorer that stands for out-of-tree plugins at PreScore. It scores
// nothing itself.
const PreScorers = "PreScore"

// Scoring is a scorer's answer for one pod. The zero value scores nothing (upstream: Skip) and is
// not listed.
type Scoring struct {
	Err error
	// Node scores one node.
	Node func(n *cluster.Node) (int64, error)
	// Exact, if not nil, returns Node's score and a finer one, the higher the better. It decides
	// among nodes with the same total, which whole numbers up to MaxScore cannot tell apart.
	Exact func(n *cluster.Node) (score, fine int64)
	// Normalize scales the scores of all feasible nodes, in their order, to 0..MaxScore; nil if
	// they are in that range.
	Normalize func(feasible []*cluster.Node, scores []int64)
	// Finish is Normalize for plugins that can fail at it.
	Finish func(feasible []*cluster.Node, scores []int64) error
}

// Reserver is a plugin that takes something other than room for a pod that is placed: a volume, a
// device.
type Reserver interface {
	Name() string
	// Reserve takes it, by changing the cluster's objects, and returns how to undo that.
	Reserve(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (undo func(), err error)
}

// Gate keeps a pod out of the queue (upstream: PreEnqueue) as long as it returns a message.
type Gate interface {
	Name() string
	Admit(p *cluster.Pod) (message string)
}

// ObjectGate is a [Gate] that looks at the cluster's objects. An empty message lets the pod in. The
// pod is the caller's, who may change it afterwards.
type ObjectGate interface {
	PreEnqueue(c *cluster.Cluster, p *cluster.Pod) (message string)
}

// FixedScorer is a [Scorer] whose raw scores depend on what is fixed of a node, its labels, taints
// and images, so that nodes which share these score the same. FewestBest and MostBest are
// normalised by the highest score of the feasible nodes (see [Normalized]), in reverse and as it
// is.
type FixedScorer interface {
	Scorer
	Scale() Scale
}

// Scale is how raw scores are brought to 0..MaxScore.
type Scale uint8

// The scales.
const (
	AsIs Scale = iota
	MostBest
	FewestBest
)

// ReadsPerPod is implemented by filters and scorers that can tell more exactly for one pod what of
// a node they depend on.
type ReadsPerPod interface {
	ReadsFor(p *cluster.Pod) Part
}

// Worthy is implemented by fixed scorers whose scores also depend on something besides pod and
// node. Two answers that are the same give the same scores.
type Worthy interface {
	Worth(c *cluster.Cluster, p *cluster.Pod) string
}

// normalizeScores scales scores to 0..MaxScore by their maximum. reverse makes the highest the
// lowest.
func normalizeScores(scores []int64, reverse bool) {
	var highest int64
	for _, s := range scores {
		highest = max(highest, s)
	}
	for i, s := range scores {
		scores[i] = Normalized(s, highest, reverse)
	}
}

// Normalized is normalizeScores for one score, given the highest of all feasible nodes: code that
// scores many nodes at once normalises with it. Division cuts off, as in upstream.
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
