package plugins

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// MaxScore is the highest normalised score of a plugin, before its weight.
const MaxScore = 100

// Filter rejects nodes that a pod cannot run on.
type Filter interface {
	Name() string
	// Reads tells what of a node the verdict depends on.
	Reads() Part
	// Filter looks at a pod and the cluster and answers with a judge of nodes. Of the pod it may
	// look at the spec, not at the labels: pods that differ in labels alone share what was worked
	// out for one of them.
	Filter(c *cluster.Cluster, p *cluster.Pod) Judge
}

// Selective is implemented by filters and scorers that have nothing to say of most pods.
type Selective interface {
	// Applies tells whether the plugin may do anything but let every node pass, and score nothing,
	// for pods of p's class. What it answers changes with device classes only.
	Applies(c *cluster.Cluster, p *cluster.Pod) bool
}

// Steady is implemented by filters that say the same of all simple pods that ask the same of single
// nodes (cluster.PodClass.Simple and Static), but for how much CPU and memory these request.
type Steady interface {
	Steady()
}

// Part is a set of the parts of a node.
type Part uint8

// The parts. Verdicts that depend on none but the interned ones (Labels, Taints, Images, Features)
// are the same for all nodes that share these.
const (
	Labels Part = 1 << iota // labels but for the host name
	Taints                  // taints and cordon
	Images
	Features
	Identity // name and host name
	Contents // the pods on it and the room they leave
	// Objects are API objects beside nodes and pods: the filter is asked anew for every decision,
	// after those that depend on nodes alone, and about the nodes that these let pass. In
	// preemption its judge is asked about nodes from which pods are thought away.
	Objects
	// Others are other nodes and the pods there: the cluster as a whole is judged anew for all that
	// is thought away.
	Others
)

// Judge is a filter's answer for one pod. The zero value lets every node pass.
type Judge struct {
	// Err says that the pod cannot be judged; the attempt to schedule it fails with it.
	Err error
	// All, if set, rejects every node before any is looked at (upstream: a PreFilter that rejects).
	All *Rejection
	// Only, if not nil, names the nodes that can come into question at all; the others are rejected
	// without a reason of their own (upstream: PreFilterResult).
	Only map[string]bool
	// Node judges one node: nil if it can take the pod. A nil func lets every node pass (upstream:
	// Skip). The node may be a copy (cluster.Node.Copy) with other pods on it than the cluster has
	// there: unless the filter reads Others, it is judged as it is handed in. The func is called
	// from several goroutines at once.
	Node func(n *cluster.Node) *Rejection
}

// Rejection says why a node cannot take a pod.
type Rejection struct {
	// Code is the stable CamelCase name of the first reason, for machines.
	Code string
	// Reasons are in upstream's words; they are counted in the FailedScheduling event.
	Reasons []string
	// Unresolvable: no removal of pods would change it, so preemption need not try.
	Unresolvable bool
	// Pending: the pod waits for somebody to act on its being scheduled, and need not back off when
	// it is woken.
	Pending bool
	// Err: the node could not be judged; the attempt fails as a whole.
	Err error
}

// Scorer ranks the nodes that all filters let pass.
type Scorer interface {
	Name() string
	// Score looks at a pod, the cluster, and the nodes that passed (two at least), and answers with
	// how they score.
	Score(c *cluster.Cluster, p *cluster.Pod, feasible []*cluster.Node) Scoring
}

// PreScorers is the name of the scorer that stands for what plugins from outside do at PreScore. It
// scores nothing itself.
const PreScorers = "PreScore"

// Scoring is a scorer's answer for one pod. The zero value scores nothing (upstream: Skip) and is
// not listed.
type Scoring struct {
	Err error
	// Node scores one node.
	Node func(n *cluster.Node) (int64, error)
	// Normalize brings the scores of all feasible nodes, in their order, to 0..MaxScore; nil if
	// they are there already.
	Normalize func(feasible []*cluster.Node, scores []int64)
	// Finish is Normalize for plugins that may fail at it.
	Finish func(feasible []*cluster.Node, scores []int64) error
}

// Reserver is a plugin that takes something beside room on the node for a pod that is placed: a
// volume, a device.
type Reserver interface {
	Name() string
	// Reserve takes it in the cluster (its objects), and returns how to give it back.
	Reserve(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (undo func(), err error)
}

// Gate keeps a pod out of the queue (upstream: PreEnqueue). An empty message lets it in.
type Gate interface {
	Name() string
	Admit(p *cluster.Pod) (message string)
}

// ObjectGate is a [Gate] that looks at the cluster's objects. An empty message lets the pod in.
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

// Worthy is implemented by fixed scorers whose scores depend on something beside pod and node, too.
// Two answers that are the same give the same scores.
type Worthy interface {
	Worth(c *cluster.Cluster, p *cluster.Pod) string
}

// RoomScorer is a [Scorer] whose scores, from 0 to MaxScore, depend on the room on the node alone.
type RoomScorer interface {
	Scorer
	ScoresRoom()
}

// normalize scales scores to 0..MaxScore by their maximum; reverse makes the highest the lowest.
func normalize(scores []int64, reverse bool) {
	var highest int64
	for _, s := range scores {
		highest = max(highest, s)
	}
	for i, s := range scores {
		scores[i] = Normalized(s, highest, reverse)
	}
}

// Normalized is what normalize makes of one score, by the highest of all feasible nodes.
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
