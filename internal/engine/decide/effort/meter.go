package effort

// Meter counts what all decisions of a decider have cost. All layers of one decider share it.
type Meter struct {
	// Work is the cost in judgements of a node. It is behaviour, not statistics: group attempts
	// end by it, so it must depend on nothing but what the decider was asked and shown.
	Work int
	// Looked counts nodes, groups and cells that were looked at. Only tests read it.
	Looked int
	// Clock counts decisions, to tell what was used last.
	Clock uint64
}

// What some things cost, in judgements of a node.
const (
	CostOfDecision  = 10 // in which there is nothing to catch up on
	CostOfSorting   = 4  // to find out where a node belongs, for all pods like one
	LooksAJudgement = 2  // as many looks of a survey cost one
)
