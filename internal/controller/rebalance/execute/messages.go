// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/response"
)

// Event is an input to a state machine; this file defines all of its types. Responses to requests
// and observed objects arrive in no particular order: a write may be observed before its response.
type Event any

type (
	// Tick signals the passing of time, as requested by Wake.
	Tick struct{}
	// Seen reports a new or changed object.
	Seen struct{ Object metav1.Object }
	// Gone reports a deleted object.
	Gone struct{ Object metav1.Object }
	// Listed means that all existing objects have been Seen.
	Listed struct{}
	// Recalled is the response to Recall.
	Recalled struct {
		Journal Journal
		Version string // "" if no journal exists yet
		// Err is set if the journal could not be read or is invalid; it ends the run.
		Err error
	}
	// Planned is the response to MakePlan.
	Planned struct{ Plan *rebalance.Plan }
	// Answered is the response to any other request.
	Answered struct {
		Ticket     response.Ticket
		Outcome    response.Outcome
		Message    string        // reason for a failure
		RetryAfter time.Duration // requested by the server; set with Busy
		Version    string        // version of the written journal
	}
	// NoReservation reports the reason for not reserving room for successors.
	NoReservation struct{ Why string }
	// Unanswered reports the reason for evicting directly: EvictionRequests have no responder.
	Unanswered struct{ Why string }
	// DrainPlanned is the response to PlanDrain.
	DrainPlanned struct{ Plan *rebalance.Draining }
	// RollPlanned is the response to PlanRoll.
	RollPlanned struct {
		Plan *rebalance.Roll
		Turn *rebalance.Turn // set if only the next turn was requested
	}
	// Stop prevents further moves. An evicted victim is followed to the end.
	Stop struct{}
)

// Action is an output of a state machine, of one of the types below. Each action is a request with
// a response, except for ReleaseReservations, Withdraw, and reports of progress or of an end.
//
// The core does not block on a response: it continues with other events, and receives the response
// as an event.
type Action any

type (
	// Recall reads the journal.
	Recall struct{}
	// MakePlan requests a plan for a state.
	MakePlan struct {
		State   *rebalance.State
		Options rebalance.Options // without the scheduler's profiles and their placement
	}
	// Note writes the journal, replacing the given version.
	Note struct {
		Ticket  response.Ticket
		Journal Journal
		// Version is the version last read or written; "" requires that the journal does not exist
		// yet. A write by another process in between causes a Conflict.
		Version string
	}
	// SetTaint sets the taint berth.dev/emptying:NoSchedule with this value on a node, or removes
	// it if the value is "".
	SetTaint struct {
		Ticket      response.Ticket
		Node, Value string
	}
	// PlanDrain requests a drain plan for a state.
	PlanDrain struct {
		State   *rebalance.State
		Leaving *rebalance.Leaving
	}
	// Cordon makes a node unschedulable.
	Cordon struct {
		Ticket response.Ticket
		Node   string
	}
	// PlanRoll requests a plan for a whole roll or only for its next turn.
	PlanRoll struct {
		State   *rebalance.State
		Rolling *rebalance.Rolling
		Next    bool
	}
	// SetNode cordons or uncordons a node and sets or removes its RollAnnotation, in one request.
	// Release also removes BoughtLabel and karpenter.sh/do-not-disrupt.
	SetNode struct {
		Ticket            response.Ticket
		Node              string
		Cordoned, Release bool
		Note              string
	}
	// BuyNode creates a NodeClaim. A NodeClaim of this name was created by a lost request:
	// names are unique to an exchange.
	BuyNode struct {
		Ticket response.Ticket
		Claim  string
		Object []byte
	}
	// SellUnused deletes the NodeClaims with BoughtLabel, except for those to keep. Their nodes may
	// not exist yet.
	SellUnused struct {
		Ticket response.Ticket
		Keep   map[string]bool
	}
	// SellNode deletes a NodeClaim. The UID is a precondition.
	SellNode struct {
		Ticket response.Ticket
		Claim  string
		UID    types.UID
	}
	// Evict requests an eviction. Grace overrides the pod's own grace period. Delete deletes the
	// pod, bypassing disruption budgets. If there are Reservations, they first replace all others.
	// Unless Direct is set, the caller may create an EvictionRequest instead; then the outcome is
	// Asked.
	Evict struct {
		Ticket          response.Ticket
		Namespace, Name string
		UID             types.UID
		Grace           *int64
		Delete, Direct  bool
		Reservations    Reservations // the pod's own is the last one
	}
	// Withdraw withdraws existing EvictionRequests for these pods.
	Withdraw struct{ Pods map[types.UID]bool }
	// Scale sets a workload's replicas and its label berth.dev/surge in one request. It sets the
	// label only on a workload that has From replicas and no such label; otherwise the outcome is
	// Conflict. It removes the label only if its value is Before; replicas other than From are then
	// left unchanged. If there are Reservations, they first replace all others.
	Scale struct {
		Ticket        response.Ticket
		Target        rebalance.Scaled
		From, To      int32
		Before, After string
		Reservations  Reservations // as in Evict
	}
	// Mark sets a pod's deletion cost to the lowest value, or with Keep to the highest. With Clear,
	// it restores the original cost.
	Mark struct {
		Ticket          response.Ticket
		Namespace, Name string
		UID             types.UID
		Clear, Keep     bool
	}
	// SetStatus sets the annotation of a pod whose eviction is held. It has no response: the
	// annotation is observed.
	SetStatus struct {
		Namespace, Name string
		UID             types.UID
		Status          string
	}
	// ReleaseReservations releases the Reservations of an Evict or a Scale.
	ReleaseReservations struct{ Reservations Reservations }
	// MoveProgress reports the progress of a move or a run.
	MoveProgress struct {
		Result  Result
		Move    *rebalance.Move // nil if unrelated to a move
		Node    string          // node of the successor
		Message string
	}
	// Done ends a run.
	Done struct {
		Moves, Misses int
		// Stopped is the reason the run ended early, or "" if it ran out of moves.
		Stopped string
		// Plan is the run's last plan.
		Plan *rebalance.Plan
	}
	// DrainProgress reports the progress of a drain.
	DrainProgress struct {
		Result  Result
		Plan    *rebalance.Draining  // with Proved
		Pod     *rebalance.Departure // nil if unrelated to a pod
		Waiting int                  // number of waiting pods, with Withheld; Message is about the first
		Held    []Held               // the waiting pods
		Node    string               // the cordoned node, or the successor's node
		Message string
	}
	// DrainDone ends a drain.
	DrainDone struct {
		// Evicted counts the evicted pods, Left the existing pods not evicted, and Ending the
		// evicted pods still terminating.
		Evicted, Left, Ending int
		// Stopped is the reason the drain ended before the nodes were empty and the successors
		// scheduled, or "" if it did not.
		Stopped string
	}

	// RollProgress reports the progress of a roll. The progress of its pods is a DrainProgress.
	RollProgress struct {
		Result  Result
		Plan    *rebalance.Roll // with Proved
		Node    string          // "" if unrelated to a node
		Message string
	}
	// RollDone ends a roll.
	RollDone struct {
		// Done counts the rolled nodes, Nodes all nodes of the roll, and Evicted the pods that have
		// left.
		Done, Nodes, Evicted int
		// Turn holds the nodes of the unfinished turn. They stay cordoned.
		Turn []string
		// Stopped is the reason the roll ended before all nodes were done, or "" if it did not.
		Stopped string
	}
)

// IsMet reports whether a node has the desired state.
func (a *SetNode) IsMet(n *v1.Node) bool {
	return n.Spec.Unschedulable == a.Cordoned && n.Annotations[RollAnnotation] == a.Note &&
		!(a.Release && n.Labels[BoughtLabel] != "")
}

// Result is the outcome of a move, or a reported step of a move, a drain or a roll.
type Result string

// The results.
const (
	Proved     Result = "Proved"    // a plan exists; Message summarizes it
	Evicted    Result = "Evicted"   // the victim is leaving
	Arrived    Result = "Arrived"   // the successor is on a planned node; for a move, it is also ready
	Elsewhere  Result = "Elsewhere" // the successor is on another node
	Pending    Result = "Pending"   // the successor found no node in time
	Unready    Result = "Unready"   // the successor did not become ready in time
	Stuck      Result = "Stuck"     // the victim did not terminate in time
	Withheld   Result = "Withheld"  // the eviction was refused: for too long in a move, for now in a drain
	Ended      Result = "Ended"     // the victim left by itself, or no successor is wanted
	Resumed    Result = "Resumed"   // a move begun by an earlier process is continued
	Cordoned   Result = "Cordoned"  // a node was made unschedulable
	Left       Result = "Left"      // the victim has terminated
	Awaited    Result = "Awaited"   // a wait takes long: for a successor, or for a pod terminating on a silent node
	Raised     Result = "Raised"    // a surge has added a replica to the workload
	Replaced   Result = "Replaced"  // the victim is leaving, after its successor was ready
	Restored   Result = "Restored"  // a surge was given up, and the scale was restored
	Direct     Result = "Direct"    // pods are evicted directly, because EvictionRequests have no responder; Message gives the reason
	Unreserved Result = "Roomless"  // no room is kept for successors; Message gives the reason
)

// Results holds the results that end a move, for metrics.
var Results = []Result{Arrived, Elsewhere, Pending, Unready, Stuck, Withheld, Ended}

// missed reports whether the move contradicts its proof. Withheld moves, and moves that ended by
// themselves, neither confirm nor contradict it.
func (r Result) missed() bool { return r == Elsewhere || r == Pending || r == Unready || r == Stuck }

// Journal is the state that survives a restart.
//
// It is stored as JSON in a ConfigMap; see package movecontroller.
type Journal struct {
	// Move is the move in progress.
	Move *Flight `json:"move,omitempty"`
	// Resting holds the recently moved workloads, as NAMESPACE/Kind/NAME.
	Resting map[string]Rest `json:"resting,omitempty"`
}

// Flight is a move in progress. It has the data needed to identify the victim and its successor
// after a restart.
type Flight struct {
	rebalance.Move
	OwnerUID types.UID `json:"ownerUID,omitempty"`
	// Begun is the wall-clock start time, truncated to the second like creationTimestamps. After a
	// restart, pods created earlier than Begun are not considered successors.
	Begun metav1.Time `json:"begun"`
	// Unready is set if the victim was not ready. Then its successor need not become ready either.
	Unready bool `json:"unready,omitempty"`
}

// Rest is a period without moves of a workload.
type Rest struct {
	Until metav1.Time `json:"until"`
	// Misses counts consecutive moves without an arrival; each doubles the rest.
	Misses int `json:"misses,omitempty"`
}
