package execute

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// Event is something that happened. Only the types of this file are events. Those that answer a
// request are in no order with objects that are seen: a write may be seen before it is answered.
type Event interface{ event() }

type (
	// Tick means only that time has passed, as Wake asked for.
	Tick struct{}
	// Seen is an object that is new or has changed.
	Seen struct{ Object metav1.Object }
	// Gone is an object that was deleted.
	Gone struct{ Object metav1.Object }
	// Listed means that all existing objects have been Seen.
	Listed struct{}
	// Recalled is the answer to Recall.
	Recalled struct {
		Journal Journal
		Version string // "" if there is none yet
		// Err is set if the journal could not be read, or is no journal; then the run ends.
		Err error
	}
	// Planned is the answer to MakePlan.
	Planned struct{ Plan *rebalance.Plan }
	// Answered is the answer to any other request.
	Answered struct {
		Ticket     Ticket
		Outcome    Outcome
		Message    string        // why not
		RetryAfter time.Duration // as the server asks, with Busy
		Version    string        // of the journal that was written
	}
	// NoRoom means that no room is kept for successors, and why.
	NoRoom struct{ Why string }
	// Unanswered means that evictions are made directly, since nobody answers EvictionRequests, and
	// why.
	Unanswered struct{ Why string }
	// DrainPlanned is the answer to PlanDrain.
	DrainPlanned struct{ Plan *rebalance.Draining }
	// RollPlanned is the answer to PlanRoll.
	RollPlanned struct {
		Plan *rebalance.Roll
		Turn *rebalance.Turn // if the next turn alone was asked for
	}
	// Stop means that no further move begins. A victim that has been evicted is followed to the
	// end.
	Stop struct{}
)

func (Tick) event()     {}
func (Seen) event()     {}
func (Gone) event()     {}
func (Listed) event()   {}
func (Recalled) event() {}
func (Planned) event()  {}
func (Answered) event() {}
func (Stop) event()     {}
func (NoRoom) event()   {}

func (Unanswered) event() {}

func (DrainPlanned) event() {}
func (RollPlanned) event()  {}

// Action is something to do. All are requests, which are answered, except for FreeRoom and
// Withdraw, and those that report progress or an end.
//
// The core does not wait for an answer where it stands: it goes on with other events, and takes the
// answer as one of them.
type Action interface{ action() }

type (
	// Recall reads the journal.
	Recall struct{}
	// MakePlan plans on a state.
	MakePlan struct {
		State   *rebalance.State
		Options rebalance.Options // all but the profiles and how they place
	}
	// Note writes the journal, replacing the given version.
	Note struct {
		Ticket  Ticket
		Journal Journal
		// Version is the one that was read or written last; "": the journal must not exist yet. A
		// write of another process in between is a Conflict.
		Version string
	}
	// SetTaint sets the taint berth.dev/emptying:NoSchedule with this value on a node, or removes
	// it if the value is "".
	SetTaint struct {
		Ticket      Ticket
		Node, Value string
	}
	// PlanDrain plans a drain on a state.
	PlanDrain struct {
		State   *rebalance.State
		Leaving *rebalance.Leaving
	}
	// Cordon makes a node unschedulable.
	Cordon struct {
		Ticket Ticket
		Node   string
	}
	// PlanRoll plans a roll on a state, or its next turn alone.
	PlanRoll struct {
		State   *rebalance.State
		Rolling *rebalance.Rolling
		Next    bool
	}
	// SetNode opens or closes a node, and notes on it how far its roll is, in one request.
	SetNode struct {
		Ticket   Ticket
		Node     string
		Cordoned bool
		Note     string
	}
	// Evict requests an eviction. Grace overrides the pod's own grace period. Delete deletes the
	// pod past disruption budgets instead. Before that, Room, if set, is kept instead of any other.
	// Without Direct, it may be requested by an EvictionRequest, and the answer is Asked.
	Evict struct {
		Ticket          Ticket
		Namespace, Name string
		UID             types.UID
		Grace           *int64
		Delete, Direct  bool
		Room            *Flight
	}
	// Withdraw withdraws the EvictionRequests for these pods, if there are any.
	Withdraw struct{ Pods map[types.UID]bool }
	// Scale has a workload want another number of pods, and sets its label berth.dev/surge, in one
	// request. A label is set only where there is none and the workload wants From pods: otherwise
	// the answer is Conflict. One is taken away only if it is Before. If the workload does not want
	// From pods then, its scale stays as it is. Before that, Room, if set, is kept instead of any
	// other.
	Scale struct {
		Ticket        Ticket
		Of            rebalance.Scaled
		From, To      int32
		Before, After string
		Room          *Flight
	}
	// Mark gives a pod the lowest deletion cost; with Keep the highest, with Clear its own again.
	Mark struct {
		Ticket          Ticket
		Namespace, Name string
		UID             types.UID
		Clear, Keep     bool
	}
	// FreeRoom has the room of an Evict kept no longer.
	FreeRoom struct{ Room *Flight }
	// Told reports progress.
	Told struct {
		Result  Result
		Move    *rebalance.Move // nil for what is not about one
		Node    string          // where the successor is
		Message string
	}
	// Done ends a run.
	Done struct {
		Moves, Misses int
		// Stopped is why the run ended early; "" if nothing was left to move.
		Stopped string
		// Plan is the last one.
		Plan *rebalance.Plan
	}
	// DrainTold reports the progress of a drain.
	DrainTold struct {
		Result  Result
		Plan    *rebalance.Draining  // with Proved
		Pod     *rebalance.Departure // nil for what is not about one
		Waiting int                  // pods, with Withheld; Message is about the first
		Held    []Held               // these pods
		Node    string               // that was cordoned, or where the successor is
		Message string
	}
	// DrainDone ends a drain.
	DrainDone struct {
		// Evicted counts the pods that were evicted, Left those that were not and are still there,
		// and Ending those that have not ended yet.
		Evicted, Left, Ending int
		// Stopped is why it ended before the nodes were empty and the successors had nodes; "" if
		// it did not.
		Stopped string
	}
)

func (Recall) action()   {}
func (MakePlan) action() {}
func (Note) action()     {}
func (SetTaint) action() {}
func (Evict) action()    {}
func (Scale) action()    {}
func (Mark) action()     {}
func (FreeRoom) action() {}
func (Withdraw) action() {}
func (Told) action()     {}
func (Done) action()     {}

type (
	// RollTold reports the progress of a roll. That of the pods is a DrainTold.
	RollTold struct {
		Result  Result
		Plan    *rebalance.Roll // with Proved
		Node    string          // "" for what is not about one
		Message string
	}
	// RollDone ends a roll.
	RollDone struct {
		// Done counts the nodes that have been rolled, of Nodes; Evicted the pods that have left.
		Done, Nodes, Evicted int
		// Turn are the nodes whose turn has begun and not ended. They stay cordoned.
		Turn []string
		// Stopped is why it ended before all nodes were done; "" if they are.
		Stopped string
	}
)

func (PlanRoll) action() {}
func (SetNode) action()  {}
func (RollTold) action() {}
func (RollDone) action() {}

func (PlanDrain) action() {}
func (Cordon) action()    {}
func (DrainTold) action() {}
func (DrainDone) action() {}

// Ticket identifies a request, so that its answer can be matched.
type Ticket uint64

// Outcome is the API's answer to a request.
//
// What matters is what the core may conclude: whether the request was carried out, was not, or may
// have been. Failed leaves that open, and with Asked it may still happen at any time; after the
// others it is known.
type Outcome int

const (
	OK       Outcome = iota
	NotFound         // no object of that name
	Conflict         // another version, of what is not a pod
	Busy             // 429: a budget, or the server itself, refuses for now
	Refused          // another refusal, which is not going to change soon
	Failed           // 5xx, a time-out, no connection: it may have been done or not
	Asked            // an EvictionRequest for the pod is there: its responders have it leave, at any time
)

// Result is the outcome of a move.
type Result string

// The results.
const (
	Proved    Result = "Proved"    // there is a plan; Message sums it up
	Evicted   Result = "Evicted"   // the victim is leaving
	Arrived   Result = "Arrived"   // the successor is ready where the plan said
	Elsewhere Result = "Elsewhere" // the successor is on another node
	Pending   Result = "Pending"   // the successor found no node in time
	Unready   Result = "Unready"   // the successor did not become ready in time
	Stuck     Result = "Stuck"     // the victim did not end in time
	Withheld  Result = "Withheld"  // the eviction was refused for too long
	Ended     Result = "Ended"     // the victim left by itself, or no successor is wanted
	Resumed   Result = "Resumed"   // a move of an earlier process is followed
	Cordoned  Result = "Cordoned"  // a node takes no new pods
	Left      Result = "Left"      // the victim is gone
	Awaited   Result = "Awaited"   // the victim is gone, and the successor has no node yet
	Raised    Result = "Raised"    // the workload has one more replica
	Replaced  Result = "Replaced"  // the victim is leaving, after its successor was ready
	Restored  Result = "Restored"  // a surge was given up, and the scale is what it was
	Direct    Result = "Direct"    // EvictionRequests are not answered; Message says why
	Roomless  Result = "Roomless"  // no room is kept for successors; Message says why
)

// Results are those that end a move, for metrics.
var Results = []Result{Arrived, Elsewhere, Pending, Unready, Stuck, Withheld, Ended}

// missed reports whether the proof turned out wrong. Moves that were withheld, or ended by
// themselves, prove nothing either way.
func (r Result) missed() bool { return r == Elsewhere || r == Pending || r == Unready || r == Stuck }

// Journal is what has to be known after a restart.
//
// It is JSON in a ConfigMap; see package live.
type Journal struct {
	// Move is the one in progress.
	Move *Flight `json:"move,omitempty"`
	// Resting are the workloads that were moved recently, as NAMESPACE/Kind/NAME.
	Resting map[string]Rest `json:"resting,omitempty"`
}

// Flight is a move in progress. It says what is needed to recognize the victim and its successor
// later.
type Flight struct {
	rebalance.Move
	OwnerUID types.UID `json:"ownerUID,omitempty"`
	// Begun is by the wall clock, to the second, as creationTimestamps are: after a restart, pods
	// that were made before it are no successors.
	Begun metav1.Time `json:"begun"`
	// Unready is set if the victim was not ready: then its successor need not be, either.
	Unready bool `json:"unready,omitempty"`
}

// Rest is how long a workload is left alone.
type Rest struct {
	Until metav1.Time `json:"until"`
	// Misses counts moves in a row whose successors did not arrive; each doubles the rest.
	Misses int `json:"misses,omitempty"`
}
