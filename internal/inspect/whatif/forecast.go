package whatif

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Kind is the kind of answers; their version is that of package simulate. Fields may be added, but
// are never renamed or removed.
const Kind = "Forecast"

// Forecast is the predicted outcome of operations. What happens anyway, with or without
// them, is kept apart: in a cluster in which a node is failing, a drain must not be
// blamed for that.
type Forecast struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Operations []string        `json:"operations"`
	// Leaving are the pods that leave their nodes because of the operations, in order of time.
	// Anyway are those that leave without them, too, and Spared those that leave only without them.
	Leaving []Leaving `json:"leaving"`
	Anyway  []Leaving `json:"anyway,omitempty"`
	Spared  []Leaving `json:"spared,omitempty"`
	// Pending are the pods that would be left without a node at the end, those that are
	// pending now included.
	Pending []Waiting `json:"pending"`
	// Placed are the pods that would get a node: new ones and ones that are pending now, but not
	// the replacements of pods that leave.
	Placed []Placed `json:"placed"`
	// Drains are the outcomes of drains, Fills those of adding pods, and Chosen the nodes that cost
	// least to lose.
	Drains []Drain `json:"drains,omitempty"`
	// Rebalances are the outcomes of rebalances.
	Rebalances []*simulate.Moved `json:"rebalances,omitempty"`
	Fills      []simulate.Fill   `json:"fills,omitempty"`
	Chosen     []simulate.Cost   `json:"chosen,omitempty"`
	// Evictions are the Eviction API's answers.
	Evictions []simulate.Evicted `json:"evictions,omitempty"`
	// Budgets are the disruption budgets that block drains or are violated.
	Budgets []Budget `json:"budgets"`
	// Provision is which nodes to buy, if that was asked.
	Provision *provision.Plan `json:"provision,omitempty"`
	// Later are the evictions that the operations cause and that are due after For.
	Later []simulate.Eviction `json:"later,omitempty"`
	// For is how much time passed. Settled is set if nothing more was to happen then.
	For         simulate.Seconds `json:"for"`
	Settled     bool             `json:"settled"`
	Utilisation struct {
		Before Utilisation `json:"before"`
		After  Utilisation `json:"after"`
		// Without is as of the same time without the operations; nil if nothing happens without
		// them.
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
	// Cause is Taint, Drain, Eviction, Preemption, NodeRemoved, Deleted, Scaled, RolledOut,
	// JobFailed, Terminated, Pressure or Rebalance; Detail names the taint, the preempting pod, the
	// Job, or the goal, and is the kubelet's message.
	Cause  simulate.Cause `json:"cause"`
	Detail string         `json:"detail,omitempty"`
	// Controller made the pod: Kind/name, or empty.
	Controller string `json:"controller,omitempty"`
	// Fate is Returns, Waits, Lost, Stuck, Ends, Fails or IndexFails; empty if the pod leaves
	// after the time that is looked at. A pod that returns is listed with its next name, and its
	// node or why it has none; if its Job, or its index of the Job, fails because of it, Reason
	// says why. One that waits is made again once those before it in its StatefulSet are ready.
	Fate   simulate.Fate `json:"fate"`
	Reason string        `json:"reason,omitempty"`
	// Again is set if the pod was the replacement of an evicted one, on a node where it may not
	// stay either, and the one that it replaced is not listed. Otherwise that one says how long its
	// replacements stay, Every time; they are not listed.
	Again bool             `json:"again,omitempty"`
	Every simulate.Seconds `json:"every,omitempty"`
	Next  *Next            `json:"next,omitempty"`
	// Otherwise is how the pod leaves without the operations: later, or for another cause.
	Otherwise *Otherwise `json:"otherwise,omitempty"`
}

// Otherwise is when and why a pod leaves without the operations.
type Otherwise struct {
	After  simulate.Seconds `json:"after"`
	Cause  simulate.Cause   `json:"cause"`
	Detail string           `json:"detail,omitempty"`
}

// Next is the pod that replaces one that left.
type Next struct {
	Name    string `json:"name"`
	Node    string `json:"node"`
	Message string `json:"message,omitempty"`
}

// Waiting is a pod without a node.
type Waiting struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Group is the pod group that it waits with; Message is then why the group waits.
	Group   string `json:"group,omitempty"`
	Message string `json:"message"`
	// Before is set if it is pending now. Anyway is set if it, or another replacement of its
	// workload, is pending without the operations, too.
	Before bool `json:"before,omitempty"`
	Anyway bool `json:"anyway,omitempty"`
}

// Placed is a pod that gets a node.
type Placed struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Node      string           `json:"node"`
	After     simulate.Seconds `json:"after"`
	// Before is set if it is pending now, Anyway if it is placed without the operations, too.
	Before bool `json:"before,omitempty"`
	Anyway bool `json:"anyway,omitempty"`
}

// Drain is the outcome of a drain.
type Drain struct {
	Nodes []string `json:"nodes"`
	// Refused are pods that keep kubectl from beginning; nothing has been drained then.
	Refused []simulate.Blocked `json:"refused,omitempty"`
	Ignored []simulate.Blocked `json:"ignored,omitempty"`
	// Terminating are pods that were being deleted already: kubectl waits until they have ended.
	Terminating []simulate.Blocked `json:"terminating,omitempty"`
	// Blocked are pods that a budget kept to the end, Waited those that it kept for a while.
	Blocked []simulate.Blocked `json:"blocked,omitempty"`
	Waited  []simulate.Blocked `json:"waited,omitempty"`
}

// Budget is a disruption budget that blocks a drain or is violated.
type Budget struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Blocks is set if it keeps pods from being drained, for a while or to the end. Broken is set
	// if pods leave in spite of it, as when taints evict them.
	Blocks bool `json:"blocks"`
	Broken bool `json:"broken"`
	// Pods are those that it holds back, or that leave in spite of it.
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

// CostOf reads the condition cost=MOST, which holds if new nodes cost more than that a
// month, in the unit of the catalog's prices. A negative number, or none, is an error.
func CostOf(condition string) (most float64, err error) {
	text, ok := strings.CutPrefix(condition, "cost=")
	if !ok {
		return 0, errors.New("is no cost")
	}
	if most, err = strconv.ParseFloat(text, 64); err == nil && !(most >= 0) {
		err = errors.New("is less than nothing, or no number")
	}
	return most, err
}

// Refused returns the pods because of which kubectl drain would not begin.
func (f *Forecast) Refused() (list []simulate.Blocked) {
	for _, d := range f.Drains {
		list = append(list, d.Refused...)
	}
	return list
}

// Holds reports whether a condition came true because of the operations. Conditions are
// those of Conditions and cost=MOST; any other is false. Pods that a rollout or a scaling
// removes were meant to go, and are not evicted.
func (f *Forecast) Holds(condition string) bool {
	switch condition {
	case "pending":
		if f.Provision != nil && len(f.Provision.Pending) > 0 {
			return true
		}
		return slices.ContainsFunc(f.Pending, func(w Waiting) bool { return !w.Anyway })
	case "evicted":
		return slices.ContainsFunc(f.Leaving, func(l Leaving) bool {
			return l.Cause != simulate.ByScaling &&
				l.Cause != simulate.ByRollout
		}) || len(f.Later) > 0
	case "pdb":
		return len(f.Budgets) > 0
	case "refused":
		return len(f.Refused()) > 0
	}

	if most, err := CostOf(condition); err == nil {
		return f.Provision != nil && f.Provision.Month > most
	}
	return false
}
