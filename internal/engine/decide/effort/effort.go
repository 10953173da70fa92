// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package effort

import "github.com/berth-k8s/berth/internal/engine/cluster"

// Budget is the remaining effort of an attempt; nil is unbounded.
type Budget struct {
	Left  int
	c     *cluster.Cluster
	looks int // looks of c already subtracted
}

// NewBudget returns the budget of a new attempt.
func NewBudget(limits *Limits, c *cluster.Cluster) *Budget { return &Budget{limits.Effort, c, c.Looks} }

// Spend subtracts judgements, and the looks counted by the cluster since the last call, from the
// budget. It returns false if the budget is exhausted.
func (b *Budget) Spend(judgements int) bool {
	if b == nil {
		return true
	}
	b.Left -= judgements + b.c.Looks - b.looks
	b.looks = b.c.Looks
	return b.Left > 0
}

// IsSpent reports whether the budget is exhausted.
func (b *Budget) IsSpent() bool { return b != nil && b.Left <= 0 }

// TooLongError is the error of an attempt that exhausted its budget.
type TooLongError struct {
	What string // operation that took too long
}

func (e *TooLongError) Error() string {
	return e.What + " takes too long with this many nodes and pods; the pod is tried again after its back-off"
}

// Unschedulable marks the error as a verdict on the pod, not a failure of the scheduler.
func (e *TooLongError) Unschedulable() bool { return true }

// CostOfPod returns the cost of judging this pod relative to a plain pod: most filters iterate over
// the items listed by the pod.
func CostOfPod(p *cluster.Pod) int {
	ports, spec := 0, p.Spec()
	for i := range spec.Containers {
		ports += len(spec.Containers[i].Ports)
	}
	return 1 + ports/8 + 2*len(spec.Volumes) + 8*len(spec.ResourceClaims)
}

// CostOfPreparing returns the cost of preparing all filters for the current cluster: filters that
// count pods by domain scan all nodes and their pods for each of their terms.
func CostOfPreparing(c *cluster.Cluster, p *cluster.Pod) int {
	terms := 1 + len(p.Spec().TopologySpreadConstraints) + p.Class.CountRequired()
	return CostOfPod(p) + terms*(c.Len()+c.Pods())/4
}

// CostOfBulk returns the additional cost of sorting all nodes for pods of an unusually large class;
// see cluster.PodClass.Bulk.
func CostOfBulk(c *cluster.Cluster, class *cluster.PodClass) int {
	const judgement = 2 << 10 // bytes of bulk that cost as much as one judgement per node
	return c.Len() * (class.Bulk / judgement)
}

// Limits holds the constants by which the fast path chooses between its data structures. Apart from
// Effort, they affect the cost of decisions, but not which nodes are best. Tests lower them so that
// small clusters cover every case.
type Limits struct {
	// FewDomains is the maximum number of domains of a topology whose nodes are grouped by domain,
	// so that a changed count moves no node. With more domains, every decision would compare too
	// many groups, so nodes are grouped by the count of their domain, unless a domain has at least
	// as many nodes as there are domains.
	FewDomains int
	// SoftDomains is the same limit for a soft spread constraint, which requires counting the
	// domains of the feasible nodes. Beyond the limit, every decision counts these domains node by
	// node, which takes less time than comparing as many groups.
	SoftDomains int
	// Groups is the maximum number of combinations of domains. With more combinations, nodes are
	// grouped by count instead of by domain for some topologies, even for topologies with few
	// domains.
	Groups int
	// BaseGroups is the maximum number of combinations of domains for a base that groups nodes by
	// the topology keys in the terms of other workloads. With more combinations, a base may sum
	// these terms for each node instead; the sum has few distinct values as long as few pods have
	// such terms.
	BaseGroups int
	// RankingGroups is the same limit for a ranking. It is higher than BaseGroups because sums are
	// costly for a ranking: if a pod with such terms is added or removed, every node of its domains
	// must be updated. A base with frequent changes of this kind is dropped.
	RankingGroups int

	// RankingCost is the number of nodes, relative to the nodes of the cluster, that the surveys of
	// a class with one tally may examine before the class gets a ranking. With more tallies, a
	// ranking costs more.
	RankingCost int
	// FewClasses is the maximum number of classes for which a ranking pays off from the second
	// decision: the fewer the classes, the more pods each is likely to have.
	FewClasses int
	// ManyNodes is the minimum number of nodes of a large cluster, where a ranking costs as much as
	// many surveys. There, a class that gets a ranking because there are few classes gets it after
	// Patience decisions, and then takes over a similar ranking not used for as many decisions.
	ManyNodes, Patience int
	// SumsCost is the counterpart of RankingCost for a base that sums the terms of other workloads.
	SumsCost int
	// LeafSize is the maximum number of nodes in a leaf of a tree before it is divided.
	LeafSize int

	// Effort bounds the cost of one attempt, apart from one scan of all nodes. All pods share the
	// deciding goroutine, and a single pod must not occupy it for longer than a tenth of a second.
	// The default is enough to preempt on 5,000 nodes with 100 victims each.
	Effort int
	// ManyTerms is the minimum number of terms that a pod must have for their effects to be cached.
	// Without the cache, every new class is compared with each term.
	ManyTerms int
	// Reasons is the maximum number of reasons with distinct texts in a ranking: half the number
	// that fits into a bucket.
	Reasons int
}

// defaultEffort is the value of Limits.Effort outside tests.
const defaultEffort = 1 << 20

// MostBudgetLooks bounds the number of disruption budget checks for the pods of one node.
const MostBudgetLooks = defaultEffort / 4

// DefaultLimits returns the production limits. Each of them was chosen by measurements with `make
// bench` and the benchmarks of decide.
func DefaultLimits() Limits {
	return Limits{
		FewDomains: 32, SoftDomains: 512, Groups: 1024, BaseGroups: 32, RankingGroups: 100,
		RankingCost: 2, FewClasses: 32, ManyNodes: 1 << 16, Patience: 64, SumsCost: 2, LeafSize: 16,
		Effort: defaultEffort, ManyTerms: 16, Reasons: 1 << 13,
	}
}

// Meter counts the cost of all decisions of a decider. All layers of one decider share it.
type Meter struct {
	// Work is the cost in judgements of a node. Work affects results: an attempt to place a pod
	// group ends when Work reaches a limit. Work must therefore depend only on the decider's calls
	// and the state of its cluster.
	Work int
	// Looked counts the nodes, groups and cells examined. Only tests read it.
	Looked int
	// Clock counts decisions, to identify the least recently used data.
	Clock uint64
}

// The costs of some operations, in judgements of a node.
const (
	CostOfDecision  = 10 // decision without changes to catch up on
	CostOfSorting   = 4  // finding a node's group, for all pods of a class
	LooksAJudgement = 2  // number of looks of a survey that cost one judgement
)
