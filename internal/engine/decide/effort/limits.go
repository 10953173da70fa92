package effort

// Limits are the constants by which the fast way chooses between its data structures. No answer
// depends on them: they decide only what an answer costs. Tests lower them so that small clusters
// meet every case.
type Limits struct {
	// FewDomains is the number of domains up to which nodes are grouped by domain, so that a
	// change of a count moves no node. With more, every decision would look at too many groups,
	// and nodes are grouped by the count.
	FewDomains int
	// SoftDomains is that number for a soft spread constraint, for which the domains of the
	// feasible nodes have to be counted. With more, every decision counts them node by node, which
	// takes less time than so many groups.
	SoftDomains int
	// Groups is the number of combinations of domains up to which nodes are grouped by domain at
	// all.
	Groups int
	// BaseGroups is the number of combinations of domains up to which a base does not sum what the
	// terms of other workloads say over all their topology keys. With more, nodes are grouped by
	// the sum, which has few values as long as few pods have such terms.
	BaseGroups int
	// RankingGroups is that number for a ranking. It is higher because of what sums cost when such
	// a pod comes or goes: every node of its domains has to be looked at. A base where that
	// happens too often is given up.
	RankingGroups int

	// RankingCost is the number of nodes that the surveys of a class may have looked at, for each
	// node of the cluster, before a class with one tally gets a ranking. With more, a ranking
	// costs more.
	RankingCost int
	// FewClasses is up to how many classes a ranking is worth its price from the second decision
	// on: the fewer the classes, the more pods each is likely to have.
	FewClasses int
	// SumsCost is the same as RankingCost for a base that sums what the terms of other workloads
	// say.
	SumsCost int
	// LeafSize is how many nodes a leaf of a tree holds before it is divided.
	LeafSize int

	// Effort bounds what one attempt may cost beyond one look at every node: all pods share the
	// goroutine that decides, and one pod must not hold it for longer than a tenth of a second.
	// The default is enough to preempt on 5,000 nodes with 100 victims each.
	Effort int
	// ManyTerms is from how many terms of one pod on what they say is remembered: every class that
	// is seen for the first time would otherwise be compared with each of them.
	ManyTerms int
	// Reasons is how many reasons with texts of their own a ranking has: half of those that a
	// bucket has room for.
	Reasons int
}

// defaultEffort is Limits.Effort, unless a test says otherwise.
const defaultEffort = 1 << 20

// MostBudgetLooks bounds the looks at the disruption budgets of one node's pods.
const MostBudgetLooks = defaultEffort / 4

// DefaultLimits returns the limits of production, each measured with `make bench` and the
// benchmarks of decide.
func DefaultLimits() Limits {
	return Limits{
		FewDomains: 32, SoftDomains: 512, Groups: 1024, BaseGroups: 32, RankingGroups: 100,
		RankingCost: 2, FewClasses: 32, SumsCost: 2, LeafSize: 16,
		Effort: defaultEffort, ManyTerms: 16, Reasons: 1 << 13,
	}
}
