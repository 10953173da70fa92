// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package effort

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
		RankingCost: 2, FewClasses: 32, SumsCost: 2, LeafSize: 16,
		Effort: defaultEffort, ManyTerms: 16, Reasons: 1 << 13,
	}
}
