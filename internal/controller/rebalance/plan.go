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

// Plan is the moves, in order, and what stays although the policy wants it moved. It is also the
// document that berth rebalance prints in JSON and YAML.
type Plan struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// From is where the state was read.
	From string `json:"from,omitempty"`
	// AsOf is the time of the state, not that at which the plan was made; zero if that is unknown.
	AsOf metav1.Time `json:"asOf,omitzero"`
	// Assumed is what was assumed about the scheduler's configuration.
	Assumed string `json:"assumed,omitempty"`
	// Placing is how well the nodes of successors could be predicted. With Sampled, fewer moves can
	// be proved.
	Placing Placing `json:"placing"`
	Moves   []Move  `json:"moves"`
	// Empties are the nodes that are empty after the plan, by name. They get the taint
	// berth.dev/emptying:NoSchedule before the first move of consolidate, and keep it.
	Empties []string `json:"empties,omitempty"`
	// Arrivals are pending pods that the scheduler places: before the first move, or in room that a
	// move has freed.
	Arrivals []Arrival `json:"arrivals,omitempty"`
	// Stays are pods that the policy wants to move but no move could be proved for, and nodes or
	// pods that could not be helped.
	Stays []Stay `json:"stays"`
	// Measures are what the policy counts, before and after the plan, in the order in which they
	// are compared.
	Measures []Measure `json:"measures"`
	// Notes are for the user, such as policy arguments that have no effect.
	Notes []string `json:"notes,omitempty"`

	tail *Plan // what was added last
	// options are those the plan was made with; After and its claims need them.
	options Options
}

// Move is one pod that leaves its node.
type Move struct {
	// Number counts from 1. Moves of the same Attempt are made together or not at all.
	Number  int    `json:"number"`
	Attempt string `json:"attempt,omitempty"`

	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Owner is the controller as Kind/NAME.
	Owner string `json:"owner,omitempty"`

	// From is the node that the pod leaves.
	From string `json:"from"`
	// To is where the successor lands. Or are the nodes that are as good, on which it may land as
	// well. To is empty if a terminal pod is deleted, and there is no successor.
	To string   `json:"to"`
	Or []string `json:"or,omitempty"`

	// Cause is the goal or the plugin, Profile that of the policy file, and Detail what is wrong
	// now.
	Cause   string `json:"cause"`
	Profile string `json:"profile,omitempty"`
	Detail  string `json:"detail"`
	// Improves is what the move reduces, from and to.
	Improves []Measure `json:"improves"`
	Cost     Cost      `json:"cost"`
	// Surge is set if one more replica comes first, NoSurge why it does not although it was asked
	// for.
	Surge   *Surge `json:"surge,omitempty"`
	NoSurge string `json:"noSurge,omitempty"`
	// Next is the next best candidate, and why this one was preferred.
	Next *Next `json:"next,omitempty"`

	// Closes is set if the node that it leaves is closed to new pods before the move, and says for
	// how long.
	Closes Closing `json:"closes,omitempty"`
	// Closed are the nodes that have to be closed to new pods when it is made, in addition to those
	// closed at the beginning: the proof of where the successor lands excludes them.
	Closed []string `json:"closed,omitempty"`

	successor string // the name that its successor has in the plan
}

// Arrival is a pending pod that gets a node. If several are as good to the scheduler, it may go to
// another one.
type Arrival struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	// After is the number of the move after which it is placed; 0: before the first.
	After int `json:"after"`
}

// Measure is a number that a plan reduces.
type Measure struct {
	Name string `json:"name"`
	// Before and After are in the unit that the gauge's name says: a count, or thousandths or
	// millionths of something.
	Before int64 `json:"before"`
	After  int64 `json:"after"`
}

// String is for people: what is counted in millionths of a node is a share of it. All others are
// printed as the gauge counts them.
func (m Measure) String() string {
	if m.Name == aboveTarget {
		return fmt.Sprintf("use above target %.4g %% -> %.4g %% of a node", float64(m.Before)*100/whole, float64(m.After)*100/whole)
	}
	return fmt.Sprintf("%s %d -> %d", m.Name, m.Before, m.After)
}

// Next is a candidate that was not chosen at that point of the plan.
type Next struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Why       string `json:"why"`
}

// Stay is a pod, or a node if only Node is set, that stays as it is.
type Stay struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Node      string `json:"node,omitempty"`
	Cause     string `json:"cause"`
	Code      Code   `json:"code"`
	Message   string `json:"message"`
}

// Code says why a pod stays.
type Code string

// The codes.
const (
	ReturnsToSameNode Code = "ReturnsToSameNode" // the scheduler may put the successor on the same node
	NoBetterNode      Code = "NoBetterNode"      // the successor finds no node, or none that improves anything
	BudgetSpent       Code = "BudgetSpent"       // a disruption budget does not allow it, or there is more than one
	Protected         Code = "Protected"         // the pod, its annotations or the policy exclude it
	NoSuccessor       Code = "NoSuccessor"       // no controller makes the pod again
	OwnerBusy         Code = "OwnerBusy"         // the workload is being rolled out or scaled
	VolumeBound       Code = "VolumeBound"       // its volumes keep it where it is
	CoolingDown       Code = "CoolingDown"       // the workload was moved lately
	NodeLeaving       Code = "NodeLeaving"       // the node is cordoned, not ready, or about to be removed by others
	Unproven          Code = "Unproven"          // it is not certain where the successor lands
	Contradiction     Code = "Contradiction"     // it makes worse what counts before what it improves
	Limit             Code = "Limit"             // a limit of the policy is reached
)

// Workload names the controller of the moved pod as NAMESPACE/Kind/NAME, which is the key of
// Options.Resting and of the journal. A pod without a controller is its own workload, so that
// removing it does not put others to rest.
func (m *Move) Workload() string {
	if m.Owner == "" {
		return m.Namespace + "/Pod/" + m.Name
	}
	return m.Namespace + "/" + m.Owner
}

// formatMinutes formats a duration for messages, to the minute.
func formatMinutes(d time.Duration) string { return d.Truncate(time.Minute).String() }
