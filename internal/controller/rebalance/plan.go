// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The version and kind of a plan in JSON.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "Rebalance"
)

// Plan holds the moves, in order, and the pods that stay although the policy would move them. It is
// also the document printed by berth rebalance in JSON and YAML.
type Plan struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// From is the source of the state.
	From string `json:"from,omitempty"`
	// AsOf is the time of the state, not of planning; zero if unknown.
	AsOf metav1.Time `json:"asOf,omitzero"`
	// Assumed describes the assumed scheduler configuration.
	Assumed string `json:"assumed,omitempty"`
	// Placing is the precision with which successors' nodes could be predicted. With Sampled, fewer
	// moves can be proved.
	Placing Placing `json:"placing"`
	Moves   []Move  `json:"moves"`
	// Empties names the nodes left empty by the plan. They get the taint
	// berth.dev/emptying:NoSchedule before the first move of consolidate, and keep it.
	Empties []string `json:"empties,omitempty"`
	// Arrivals are the pending pods that the scheduler will place: before the first move, or in
	// room freed by a move.
	Arrivals []Arrival `json:"arrivals,omitempty"`
	// Stays lists the pods selected by the policy for which no move can be proved, and the nodes
	// that could not be emptied.
	Stays []Stay `json:"stays"`
	// Measures holds the values of the policy's gauges, before and after the plan, in order of
	// comparison.
	Measures []Measure `json:"measures"`
	// Notes are for the user, such as policy arguments without effect.
	Notes []string `json:"notes,omitempty"`

	tail *Plan // the last appended plan
	// options are the inputs of planning; After needs them.
	options Options
}

// Move moves one pod off its node.
type Move struct {
	// Number counts from 1. Moves of the same Attempt are made together or not at all.
	Number  int    `json:"number"`
	Attempt string `json:"attempt,omitempty"`

	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Owner is the controller as Kind/NAME.
	Owner string `json:"owner,omitempty"`

	// From is the pod's current node.
	From string `json:"from"`
	// To is the successor's planned node. Or lists equally good nodes on which it may land instead.
	// To is empty for the deletion of a terminal pod, which has no successor.
	To string   `json:"to"`
	Or []string `json:"or,omitempty"`

	// Cause is the goal or the plugin, Profile is the policy file's profile, and Detail is the
	// reason to move the pod.
	Cause   string `json:"cause"`
	Profile string `json:"profile,omitempty"`
	Detail  string `json:"detail"`
	// Improves lists the reduced gauges, with their values before and after.
	Improves []Measure `json:"improves"`
	Cost     Cost      `json:"cost"`
	// Surge is set if one more replica is started first; NoSurge is the reason a requested surge is
	// omitted.
	Surge   *Surge `json:"surge,omitempty"`
	NoSurge string `json:"noSurge,omitempty"`
	// Next is the next best candidate, with the reason for preferring this one.
	Next *Next `json:"next,omitempty"`

	// Closes is set if the source node is closed to new pods before the move, and determines for
	// how long.
	Closes Closing `json:"closes,omitempty"`
	// Closed names the nodes that must be closed to new pods during the move, in addition to those
	// closed at the beginning: the proof of the successor's node excludes them.
	Closed []string `json:"closed,omitempty"`

	successor string // the successor's name in the plan
}

// Arrival is a pending pod that gets a node. If the scheduler rates several nodes equally, the pod
// may go to another of them.
type Arrival struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	// After is the number of the move preceding the placement; it is 0 if the pod is placed before
	// the first move.
	After int `json:"after"`
}

// Measure is the value of a gauge before and after a plan or a move.
type Measure struct {
	Name string `json:"name"`
	// Before and After are in the unit named by the gauge: a count, or thousandths or millionths of
	// something.
	Before int64 `json:"before"`
	After  int64 `json:"after"`
}

// String formats the measure in human-readable form: a gauge in millionths of a node is printed as
// a share of a node, any other gauge as its plain count.
func (m Measure) String() string {
	if m.Name == aboveTarget {
		return fmt.Sprintf("use above target %.4g %% -> %.4g %% of a node", float64(m.Before)*100/whole, float64(m.After)*100/whole)
	}
	return fmt.Sprintf("%s %d -> %d", m.Name, m.Before, m.After)
}

// Next is the next best candidate for a move, and the reason for not choosing it.
type Next struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Why       string `json:"why"`
}

// Stay is an unmoved pod, or an unchanged node if only Node is set.
type Stay struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Node      string `json:"node,omitempty"`
	Cause     string `json:"cause"`
	Code      Code   `json:"code"`
	Message   string `json:"message"`
}

// Code is the reason for leaving a pod in place.
type Code string

// The codes.
const (
	ReturnsToSameNode Code = "ReturnsToSameNode" // the scheduler may put the successor on the same node
	NoBetterNode      Code = "NoBetterNode"      // no node fits the successor, or no fitting node improves anything
	BudgetSpent       Code = "BudgetSpent"       // a disruption budget does not allow the move, or several budgets cover the pod
	Protected         Code = "Protected"         // the pod's state, its annotations or the policy forbid the move
	NoSuccessor       Code = "NoSuccessor"       // no controller recreates the pod
	OwnerBusy         Code = "OwnerBusy"         // the workload is being rolled out or scaled
	VolumeBound       Code = "VolumeBound"       // its volumes or devices keep the pod on its node
	CoolingDown       Code = "CoolingDown"       // the workload was moved recently
	NodeLeaving       Code = "NodeLeaving"       // the node is cordoned, not ready, being deleted, or about to be removed
	Unproven          Code = "Unproven"          // the successor's node is uncertain
	Contradiction     Code = "Contradiction"     // the move would worsen a more important gauge
	Limit             Code = "Limit"             // a limit of the policy is reached
)

// Workload names the controller of the moved pod as NAMESPACE/Kind/NAME, the key of Options.Resting
// and of the journal. A pod without a controller is its own workload, so its removal puts no other
// workload to rest.
func (m *Move) Workload() string {
	if m.Owner == "" {
		return m.Namespace + "/Pod/" + m.Name
	}
	return m.Namespace + "/" + m.Owner
}

// formatMinutes formats a duration for messages, to the minute.
func formatMinutes(d time.Duration) string { return d.Truncate(time.Minute).String() }
