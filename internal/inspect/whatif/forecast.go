package whatif

import (
	"slices"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Kind is the kind of answers; their version is that of package simulate. Fields may be added, none
// is renamed or taken away.
const Kind = "Forecast"

// Forecast is what would come of operations.
type Forecast struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Operations []string        `json:"operations"`
	// Leaving are the pods that leave their nodes because of the operations, in their order; Anyway
	// those that leave without them, too, and Spared those that leave only without them.
	Leaving []Leaving `json:"leaving"`
	Anyway  []Leaving `json:"anyway,omitempty"`
	Spared  []Leaving `json:"spared,omitempty"`
	// Pending are the pods that would be left without a node at the end.
	Pending []Waiting `json:"pending"`
	// Placed are pods that would get a node, other than those that only return: new ones, and ones
	// that wait now.
	Placed []Placed `json:"placed"`
	// Drains are what came of drains, Fills of pods that were added, Chosen the nodes that cost
	// least to lose.
	Drains []Drain `json:"drains,omitempty"`
	// Rebalances are what came of rebalances.
	Rebalances []*simulate.Moved `json:"rebalances,omitempty"`
	Fills      []simulate.Fill   `json:"fills,omitempty"`
	Chosen     []simulate.Cost   `json:"chosen,omitempty"`
	// Budgets are the disruption budgets that stand in the way or are broken.
	Budgets []Budget `json:"budgets"`
	// Later are evictions that the operations cause and that are due after the time that was looked
	// at.
	Later []simulate.Eviction `json:"later,omitempty"`
	// For is how long time was let pass; Settled tells that nothing more was to happen then.
	For         simulate.Seconds `json:"for"`
	Settled     bool             `json:"settled"`
	Utilisation struct {
		Before Utilisation `json:"before"`
		After  Utilisation `json:"after"`
		// Without is at the same time without the operations, where anything happens without them.
		Without *Utilisation `json:"without,omitempty"`
	} `json:"utilisation"`
	Notes []string `json:"notes,omitempty"`
}

// Leaving is a pod that would leave its node.
type Leaving struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Node      string           `json:"node"`
	After     simulate.Seconds `json:"after"`
	// Cause is Taint, Drain, Preemption, NodeRemoved, Deleted, Scaled, RolledOut or Rebalance;
	// Detail names the taint, who preempts, or the goal.
	Cause  simulate.Cause `json:"cause"`
	Detail string         `json:"detail,omitempty"`
	// Controller made the pod: Kind/name, or empty.
	Controller string `json:"controller,omitempty"`
	// Fate is Returns, Lost, Stuck or Ends. A pod that returns is listed with its next name, and
	// its node or why it has none.
	Fate simulate.Fate `json:"fate"`
	// Again: the pod had come back in the place of one that was evicted, to where it may not stay
	// either.
	Again bool  `json:"again,omitempty"`
	Next  *Next `json:"next,omitempty"`
	// Otherwise is how the pod leaves without the operations: later, or for another cause.
	Otherwise *Otherwise `json:"otherwise,omitempty"`
}

// Otherwise is when and why a pod leaves without the operations.
type Otherwise struct {
	After  simulate.Seconds `json:"after"`
	Cause  simulate.Cause   `json:"cause"`
	Detail string           `json:"detail,omitempty"`
}

// Next is the pod that is made in the place of one that left.
type Next struct {
	Name    string `json:"name"`
	Node    string `json:"node"`
	Message string `json:"message,omitempty"`
}

// Waiting is a pod without a node.
type Waiting struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Group is the pod group that it waits with; Message is then why that waits.
	Group   string `json:"group,omitempty"`
	Message string `json:"message"`
	// Before: it is pending now already. Anyway: it, or another replacement of its workload, is
	// pending without the operations, too.
	Before bool `json:"before,omitempty"`
	Anyway bool `json:"anyway,omitempty"`
}

// Placed is a pod that gets a node.
type Placed struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Node      string           `json:"node"`
	After     simulate.Seconds `json:"after"`
	// Before: it is pending now. Anyway: it is placed without the operations, too.
	Before bool `json:"before,omitempty"`
	Anyway bool `json:"anyway,omitempty"`
}

// Drain is what came of a drain.
type Drain struct {
	Nodes []string `json:"nodes"`
	// Refused are pods that keep kubectl from beginning; nothing has been drained then.
	Refused []simulate.Blocked `json:"refused,omitempty"`
	Ignored []simulate.Blocked `json:"ignored,omitempty"`
	// Terminating are pods whose deletion was under way already: kubectl waits until they have
	// ended.
	Terminating []simulate.Blocked `json:"terminating,omitempty"`
	// Blocked are pods that a budget kept to the end, Waited those that it kept for a while.
	Blocked []simulate.Blocked `json:"blocked,omitempty"`
	Waited  []simulate.Blocked `json:"waited,omitempty"`
}

// Budget is a disruption budget that is hit.
type Budget struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Blocks: it keeps pods from being drained, for a while or to the end; Broken: pods leave in
	// spite of it, as taints evict.
	Blocks bool `json:"blocks"`
	Broken bool `json:"broken"`
	// Pods are those that it is about.
	Pods []string `json:"pods"`
}

// Utilisation is how full a cluster is.
type Utilisation struct {
	Nodes   int    `json:"nodes"`
	Empty   int    `json:"empty"` // nodes without pods
	Pods    int    `json:"pods"`  // with a node
	Pending int    `json:"pending"`
	CPU     Amount `json:"cpu"`    // in thousandths
	Memory  Amount `json:"memory"` // in bytes
}

// Amount is how much of a resource is requested.
type Amount struct {
	Requested   int64   `json:"requested"`
	Allocatable int64   `json:"allocatable"`
	Percent     float64 `json:"percent"`
}

// Conditions are what --fail-on can name.
var Conditions = []string{"pending", "evicted", "pdb", "refused"}

// Refused are the pods for which kubectl drain would not begin.
func (f *Forecast) Refused() (list []simulate.Blocked) {
	for _, d := range f.Drains {
		list = append(list, d.Refused...)
	}
	return list
}

// Holds tells whether a condition came true because of the operations.
func (f *Forecast) Holds(condition string) bool {
	switch condition {
	case "pending":
		return slices.ContainsFunc(f.Pending, func(w Waiting) bool { return !w.Anyway })
	case "evicted":
		return slices.ContainsFunc(f.Leaving, func(l Leaving) bool { return l.Cause != simulate.ByScaling && l.Cause != simulate.ByRollout }) || len(f.Later) > 0
	case "pdb":
		return len(f.Budgets) > 0
	case "refused":
		return len(f.Refused()) > 0
	}
	return false
}
