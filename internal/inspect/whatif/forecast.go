// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Kind is the kind of forecasts; package simulate defines their version. Fields may be added, but
// are never renamed or removed.
const Kind = "Forecast"

// Forecast is the predicted outcome of operations. It separates the effects of the operations from
// events that would happen anyway: a drain must not be blamed for a node that is already failing.
type Forecast struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Operations []string        `json:"operations"`
	// Leaving lists the pods that leave their nodes because of the operations, in order of time.
	// Anyway lists the pods that leave regardless, and Spared lists the pods that leave only
	// without the operations.
	Leaving []Leaving `json:"leaving"`
	Anyway  []Leaving `json:"anyway,omitempty"`
	Spared  []Leaving `json:"spared,omitempty"`
	// Pending lists the pods without a node at the end, including pods that are pending now.
	Pending []Waiting `json:"pending"`
	// Placed lists the new and currently pending pods that would get a node, but not the
	// replacements of departed pods.
	Placed []Placed `json:"placed"`
	// Drains holds the outcomes of drains, Fills holds the outcomes of adding pods, and Chosen
	// lists the cheapest nodes to lose.
	Drains []Drain `json:"drains,omitempty"`
	// Rebalances has the outcomes of rebalances.
	Rebalances []*simulate.Moved `json:"rebalances,omitempty"`
	Fills      []simulate.Fill   `json:"fills,omitempty"`
	Chosen     []simulate.Cost   `json:"chosen,omitempty"`
	// Evictions has the results of the Eviction API.
	Evictions []simulate.Evicted `json:"evictions,omitempty"`
	// Budgets lists the disruption budgets that block drains or are violated.
	Budgets []Budget `json:"budgets"`
	// Provision is the plan of nodes to buy, if requested.
	Provision *provision.Plan `json:"provision,omitempty"`
	// Later lists the evictions caused by the operations and due after For.
	Later []simulate.Eviction `json:"later,omitempty"`
	// For is the simulated time. Settled is set if no events were pending at its end.
	For         simulate.Seconds `json:"for"`
	Settled     bool             `json:"settled"`
	Utilisation struct {
		Before Utilisation `json:"before"`
		After  Utilisation `json:"after"`
		// Without is the utilisation at the same time without the operations; nil if nothing would
		// happen without them.
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
	// JobFailed, Terminated, Pressure or Rebalance. Detail names the taint, the preempting pod, the
	// Job, or the goal, or holds the kubelet's message.
	Cause  simulate.Cause `json:"cause"`
	Detail string         `json:"detail,omitempty"`
	// Controller is the pod's controller as Kind/name, or empty.
	Controller string `json:"controller,omitempty"`
	// Fate is Returns, Waits, Lost, Stuck, Ends, Fails or IndexFails. It is empty if the pod leaves
	// after the end of the forecast. For a returning pod, Next has the replacement's name, and its
	// node or the reason it has none. If the departure fails the pod's Job or its index of the Job,
	// Reason has the cause. A waiting pod is recreated by its StatefulSet after the preceding pods
	// are ready, or by its Job after a back-off.
	Fate   simulate.Fate `json:"fate"`
	Reason string        `json:"reason,omitempty"`
	// Again is set if the pod replaced an evicted pod on a node where it may not stay either, and
	// the evicted pod is not listed. If the evicted pod is listed, its replacements are omitted,
	// and its Every is the interval at which they leave.
	Again bool             `json:"again,omitempty"`
	Every simulate.Seconds `json:"every,omitempty"`
	Next  *Next            `json:"next,omitempty"`
	// Otherwise is the pod's departure without the operations: later, or for another cause.
	Otherwise *Otherwise `json:"otherwise,omitempty"`
}

// Otherwise describes when and why a pod leaves without the operations.
type Otherwise struct {
	After  simulate.Seconds `json:"after"`
	Cause  simulate.Cause   `json:"cause"`
	Detail string           `json:"detail,omitempty"`
}

// Next is the replacement of a departed pod. After is the time from the beginning of the forecast
// to its creation.
type Next struct {
	Name    string           `json:"name"`
	After   simulate.Seconds `json:"after,omitempty"`
	Node    string           `json:"node"`
	Message string           `json:"message,omitempty"`
}

// Waiting is a pod without a node.
type Waiting struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Group is the pod's pod group, if it waits with one; Message is then the group's reason for
	// waiting.
	Group   string `json:"group,omitempty"`
	Message string `json:"message"`
	// Before is set if the pod is pending now. Anyway is set if it, or another replacement of its
	// workload, is also pending without the operations.
	Before bool `json:"before,omitempty"`
	Anyway bool `json:"anyway,omitempty"`
}

// Placed is a pod that gets a node.
type Placed struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Node      string           `json:"node"`
	After     simulate.Seconds `json:"after"`
	// Before is set if the pod is pending now. Anyway is set if it is also placed without the
	// operations.
	Before bool `json:"before,omitempty"`
	Anyway bool `json:"anyway,omitempty"`
}

// Drain is the outcome of a drain.
type Drain struct {
	Nodes []string `json:"nodes"`
	// Refused lists pods that keep kubectl from starting the drain, in which case all pods stay.
	Refused []simulate.Blocked `json:"refused,omitempty"`
	Ignored []simulate.Blocked `json:"ignored,omitempty"`
	// Terminating lists pods that were already being deleted: kubectl waits for their end.
	Terminating []simulate.Blocked `json:"terminating,omitempty"`
	// Blocked lists pods that a budget holds until the end of the forecast. Waited lists pods that
	// a budget holds for a while.
	Blocked []simulate.Blocked `json:"blocked,omitempty"`
	Waited  []simulate.Blocked `json:"waited,omitempty"`
}

// Budget is a disruption budget that blocks a drain or is violated.
type Budget struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Blocks is set if the budget keeps pods from being drained, for a while or to the end. Broken
	// is set if pods leave despite the budget, for example because of taints.
	Blocks bool `json:"blocks"`
	Broken bool `json:"broken"`
	// Pods lists the pods held back by the budget, or leaving despite it.
	Pods []string `json:"pods"`
}

// Utilisation describes the cluster's utilisation.
type Utilisation struct {
	Nodes   int    `json:"nodes"`
	Empty   int    `json:"empty"` // nodes without pods
	Pods    int    `json:"pods"`  // on nodes
	Pending int    `json:"pending"`
	CPU     Amount `json:"cpu"`    // in millicores
	Memory  Amount `json:"memory"` // in bytes
}

// Amount is the requested amount of a resource, and the allocatable amount.
type Amount struct {
	Requested   int64   `json:"requested"`
	Allocatable int64   `json:"allocatable"`
	Percent     float64 `json:"percent"`
}

// Conditions lists the conditions accepted by --fail-on.
var Conditions = []string{"pending", "evicted", "pdb", "refused"}

// CostOf parses the condition cost=MOST, which holds if new nodes cost more than MOST per month, in
// the unit of the catalog's prices. A negative or missing number is an error.
func CostOf(condition string) (most float64, err error) {
	text, ok := strings.CutPrefix(condition, "cost=")
	if !ok {
		return 0, errors.New("is not a cost")
	}
	if most, err = strconv.ParseFloat(text, 64); err == nil && !(most >= 0) {
		err = errors.New("must be a number, 0 or more")
	}
	return most, err
}

// Refused returns the pods that would keep kubectl drain from starting.
func (f *Forecast) Refused() (list []simulate.Blocked) {
	for _, d := range f.Drains {
		list = append(list, d.Refused...)
	}
	return list
}

// Holds reports whether a condition became true because of the operations. It accepts Conditions
// and cost=MOST, and returns false for any other condition. Pods removed by a rollout or a scaling
// are meant to leave, and do not count as evicted.
func (f *Forecast) Holds(condition string) bool {
	switch condition {
	case "pending":
		return f.Provision != nil && len(f.Provision.Pending) > 0 ||
			slices.ContainsFunc(f.Pending, func(w Waiting) bool { return !w.Anyway }) ||
			slices.ContainsFunc(f.Leaving, func(l Leaving) bool { return l.Fate == simulate.Waits })
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
