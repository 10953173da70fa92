// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// RollAnnotation records the progress of nodes being rolled. It is the only state needed by another
// run, and is removed when the roll is complete.
const RollAnnotation = "berth.dev/roll"

// RollNote is the value of RollAnnotation.
//
// It is stored on the node rather than in a journal because a roll may take days: kubectl describe
// node shows the node's progress, and deleting the node deletes its note.
type RollNote struct {
	// Begun is the start of the roll, and distinguishes it from earlier ones.
	Begun metav1.Time `json:"begun"`
	State RollState   `json:"state"`
	// Cordoned is set if the node was cordoned before the roll; then the roll leaves it cordoned.
	Cordoned bool `json:"cordoned,omitempty"`
	// Before is the result of beforeOf at the start of the node's turn, compared to detect a
	// restart.
	Before string `json:"before,omitempty"`
	// Next is, during the node's turn, the first node with a later turn.
	Next string `json:"next,omitempty"`
	// Remove is set in the notes of an exchange, which a roll ignores, and the reverse.
	Remove bool `json:"remove,omitempty"`
	// Instead is the name of the deleted node that this new node replaces.
	Instead string `json:"instead,omitempty"`
}

// RollState is the progress of a node's roll.
type RollState string

const (
	// A node without a note, or with a note of an earlier roll, is in none of these states.
	rollNext RollState = "next" // cordoned until its turn begins
	rollTurn RollState = "turn" // its turn has begun
	rollDone RollState = "done"
	// One node keeps this state while the notes of a complete roll are removed. A run that finds it
	// does not continue the roll.
	rollComplete RollState = "complete"
)

// Until is the condition that ends an empty node's turn.
type Until string

const (
	UntilDrained Until = "drained" // no further condition
	UntilReady   Until = "Ready"   // the node has restarted, and is ready
	UntilNew     Until = "new"     // a new node has replaced it, and is ready
	UntilRemoved Until = "removed" // it is being deleted; see exchanges
)

// RollOptions configure a roll.
type RollOptions struct {
	// DrainOptions apply to each turn. Only an exchange uses Nodes, and ignores Selector: these
	// nodes and those of an unfinished exchange are removed.
	DrainOptions
	Selector labels.Selector
	// Buy holds the NodeClaims that an exchange creates before the first turn, by name, as JSON.
	Buy map[string][]byte
	// AtOnce returns the number of nodes per turn for a total number of nodes. It is a function
	// because --max-unavailable may be a percentage, and the total is unknown until the nodes have
	// been listed.
	AtOnce func(nodes int) int
	Until  Until
	// Pays, if set, reports whether an exchange still pays if these nodes stay.
	Pays func(stay []string) bool
	// Restart starts a new roll instead of continuing an unfinished one.
	Restart bool
}

// rollStage is the state of the Roller's state machine.
//
//	rollListing -> rollRestoring -> [rollBuying ->] rollPlanning -> turnPlanning -> turnClosing -> turnEmptying
//	    -> [turnOpening -> turnRest ->] turnWaiting -> turnEnding -> turnPlanning ...
//	at the end, or when it is stopped: rollReopening -> [rollClearing ->] rollOver
type rollStage int

const (
	rollListing   rollStage = iota // waits until all objects are listed
	rollRestoring                  // undoes surges left behind by an earlier run
	rollBuying                     // waits for the nodes of new NodeClaims
	rollPlanning                   // waits for the plan of the whole roll
	turnPlanning                   // waits for the plan of the next turn
	turnClosing                    // cordons the nodes of this turn and of later turns
	turnEmptying                   // drains the nodes of the turn
	turnOpening                    // uncordons nodes for pods that fit on no other node
	turnRest                       // drains these remaining pods
	turnWaiting                    // waits until the nodes have restarted or been replaced
	turnEnding                     // uncordons the nodes
	rollReopening                  // uncordons nodes closed for later turns, because the roll stops
	rollClearing                   // removes the notes of the complete roll
	rollOver
)

// Roller rolls nodes. It plans the whole roll once, for display, and replans each turn when it
// begins, by the same rules. Each turn is carried out by a Drainer, with the guarantees of a drain.
//
// Progress is recorded on the nodes, so after a killed run the next one continues with the nodes in
// an unfinished turn.
//
// The Roller itself requests only SetNode and PlanRoll. All other requests are issued by the turn's
// Drainer; the Roller forwards the Drainer's actions and their responses.
type Roller struct {
	machine
	options RollOptions
	// cluster is shared with the drainer, which updates it while one exists; see pass.
	cluster *cluster
	drainer *Drainer // the turn's drain; nil between drains

	stage    rollStage
	last     rollStage // stage for which entered was set
	entered  time.Time // start of that stage
	listed   bool
	stopping bool

	// begun identifies the roll: notes with another time belong to other rolls. It is not the start
	// of this process.
	begun  metav1.Time
	total  int
	closed map[string]bool // nodes cordoned before the roll
	turn   *rebalance.Turn
	// A node of the turn missing from uids was deleted before the turn began.
	uids   map[string]types.UID // UIDs of the turn's nodes
	before map[string]string    // results of beforeOf, by node
	came   map[string]string    // replacement nodes, by the name of the replaced node
	tries  int                  // consecutive repeated plans of the turn without an eviction
	// draining is the start of the turn's first drain; zero before.
	draining time.Time
	evicted  int
	rolled   int // count of rolled nodes, taken before their notes are removed
	stopped  string
	waits    string // the last reported message about awaited nodes

	// wanted is the desired state of nodes, by name; each stage replaces it. writes holds the
	// attempts to write that state.
	wanted map[string]SetNode
	writes map[string]*attempt // by node

	claims  map[string]*attempt // by description
	removed int                 // nodes removed by an exchange
	stay    []string            // nodes of an exchange that are not removed
	held    time.Time           // time since which no turn can begin
}

// rollTickets is larger than any ticket of a Drainer, so a ticket identifies the recipient of a
// response.
const rollTickets = response.Ticket(1) << 32

// NewRoller returns a Roller without any cluster state. The roll begins with the event Listed.
func NewRoller(options RollOptions) *Roller {
	return &Roller{
		machine: machine{tickets: rollTickets, wallOf: options.Wall},
		options: options, cluster: newCluster(), closed: map[string]bool{}, came: map[string]string{}, writes: map[string]*attempt{},
		claims: map[string]*attempt{},
	}
}

// Step applies an event and returns the actions caused by the event and by the passing of time.
//
// The caller owns the actions. RollDone is the last action.
func (r *Roller) Step(now time.Time, event Event) []Action {
	r.beginStep(now)
	switch e := event.(type) {
	case Listed:
		r.listed = true
	case RollPlanned:
		r.planned(e)
	case Stop:
		r.stopping = true
		r.drain(e)
	case Answered:
		if e.Ticket > rollTickets {
			r.answered(e)
		} else {
			r.drain(e)
		}
	default:
		r.pass(e)
	}

	r.advance()
	return r.actions
}

// pass forwards an event to the turn's drain, which shares the cluster state. Either the drainer or
// the Roller updates the cluster, never both.
func (r *Roller) pass(event Event) {
	if r.drainer != nil {
		r.drain(event)
		return
	}
	r.cluster.see(event)
	switch e := event.(type) {
	case NoReservation:
		r.addAction(DrainProgress{Result: Unreserved, Message: e.Why})
	case Unanswered:
		r.addAction(DrainProgress{Result: Direct, Message: e.Why})
	}
}

// beginDrain begins a drain with a timeout counted from the given time. The drainer shares the
// roll's cluster state, so Listed is the only event it needs to begin.
func (r *Roller) beginDrain(options DrainOptions, begun time.Time) {
	options.Returned = map[types.UID]bool{}
	r.at = time.Time{} // until the drain is over, only the drainer sets alarms
	r.drainer = newDrainer(options, r.cluster)
	r.drainer.begun, r.drainer.rolls = begun, true
	r.drain(Listed{})
}

// drain forwards an event to the turn's drain and handles the resulting actions. DrainDone is not
// forwarded, because it ends a turn rather than the roll.
func (r *Roller) drain(event Event) {
	if r.drainer == nil {
		return
	}
	for _, action := range r.drainer.Step(r.now, event) {
		switch a := action.(type) {
		case DrainDone:
			r.drained(a)
		case DrainProgress:
			if a.Result != Cordoned && a.Result != Proved { // the roll has already reported these
				r.addAction(a)
			}
		default:
			r.addAction(a)
		}
	}
}

// Wake returns the time of the next Tick, unless an event arrives first.
func (r *Roller) Wake() (at time.Time, ok bool) {
	at = r.at
	if r.drainer != nil {
		if inner, ok := r.drainer.Wake(); ok {
			at = pacing.Sooner(at, inner)
		}
	}
	return at, !at.IsZero() && r.stage != rollOver
}

// noteOf returns a node's note. ok is false if the annotation is missing or invalid.
func (r *Roller) noteOf(n *v1.Node) (note RollNote, ok bool) {
	ok = json.Unmarshal([]byte(n.Annotations[RollAnnotation]), &note) == nil
	// Kubelets can write notes; a year above 9999 could not be read again.
	return note, ok && note.Remove == r.exchanges() && note.Begun.UTC().Year() < 9999
}

// nodes returns the selected nodes. They are read from the cluster each time, because nodes appear
// and disappear during a roll.
func (r *Roller) nodes() []*v1.Node {
	return slices.DeleteFunc(r.cluster.nodes(), func(n *v1.Node) bool { return !r.selects(n) })
}

// nodeReady reports whether a node is ready; a ready node may still be cordoned.
func nodeReady(n *v1.Node) bool { return disruption.ReadinessOf(n) == v1.ConditionTrue }

// beforeOf returns a fingerprint of a node that changes once the node has restarted or was briefly
// not ready. A recreated node has another UID, and a rebooted one another boot ID; after an
// in-place upgrade of the kubelet or the runtime, the version differs.
func beforeOf(n *v1.Node) string {
	info := n.Status.NodeInfo
	text := []string{string(n.UID), info.BootID, info.KernelVersion, info.OSImage, info.KubeletVersion, info.ContainerRuntimeVersion}
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			text = append(text, c.LastTransitionTime.UTC().Format(time.RFC3339))
		}
	}
	return strings.Join(text, "|")
}

// find reads the progress of an earlier run from the nodes, and identifies the current roll.
//
// The current roll is the newest roll with a note on any node. If all of its nodes are done, or if
// Restart is set, a new roll begins. The new roll's time is later than the previous roll's, so
// their notes cannot be confused even if both begin within a second.
//
// find reports whether the newest roll is complete and only its notes must still be removed.
func (r *Roller) find() (complete bool) {
	finished := true
	for _, n := range r.nodes() {
		if note, ok := r.noteOf(n); ok && note.Begun.After(r.begun.Time) {
			r.begun = note.Begun
		}
	}
	for _, n := range r.nodes() {
		note, ok := r.noteOf(n)
		complete = complete || ok && note.State == rollComplete
		finished = finished && r.isIn(n, rollDone)
	}
	if complete && !r.options.Restart {
		return true
	}
	finished = finished || complete
	resumed := !finished && !r.begun.IsZero() && !r.options.Restart
	if !resumed {
		r.begun = metav1.NewTime(pacing.Later(r.wall().Truncate(time.Second), r.begun.Add(time.Second)))
	}
	for _, n := range r.nodes() {
		note, ok := r.noteOf(n)
		r.closed[n.Name] = n.Spec.Unschedulable
		// An unfinished node may have been cordoned by the roll; its note has the original state.
		if ok && note.State != rollDone && note.State != rollComplete {
			r.closed[n.Name] = note.Cordoned
		}
	}
	r.total = len(r.nodes())
	if resumed {
		r.addAction(RollProgress{Result: Resumed, Message: fmt.Sprintf("continuing the %s that began at "+
			"%s: %d of %d nodes are done", map[bool]string{false: "roll", true: "exchange"}[r.exchanges()], r.begun.UTC().Format(time.RFC3339), r.done(), r.total)})
	}
	return false
}

// isIn reports whether a node is in the given state of the current roll. A node created after the
// roll began counts as done: it is as new as a rolled node, and needs no turn.
func (r *Roller) isIn(n *v1.Node, state RollState) bool {
	note, ok := r.noteOf(n)
	switch {
	case ok && note.Begun.Equal(&r.begun):
		return note.State == state
	case !r.begun.IsZero() && n.CreationTimestamp.After(r.begun.Time):
		return state == rollDone
	}
	return false
}

// restore undoes surges left behind by a killed run, and then requests the plan of the whole roll.
// The additional replicas take up room, so a plan that counts them may be refused. Then no turn
// would begin, and the surges would never be undone.
func (r *Roller) restore() {
	r.stage = rollRestoring
	options := r.options.DrainOptions
	options.Nodes, options.OnlyRestore = r.rolling().Nodes, true
	r.beginDrain(options, r.now)
}

// rolling returns the planner's input, owned by the caller.
func (r *Roller) rolling() *rebalance.Rolling {
	plan := &rebalance.Rolling{Leaving: r.options.Leaving, AtOnce: r.options.AtOnce(r.total), Closed: maps.Clone(r.closed),
		Removes: r.exchanges()}
	plan.Nodes = nil
	for _, n := range r.nodes() {
		switch {
		case r.isIn(n, rollDone):
			// Nodes with a note are listed first: they determine the zone to continue in.
			if _, noted := r.noteOf(n); noted {
				plan.Done = slices.Insert(plan.Done, 0, n.Name)
			} else {
				plan.Done = append(plan.Done, n.Name)
			}
			continue
		case r.isIn(n, rollTurn):
			plan.Begun = append(plan.Begun, n.Name)
		}
		plan.Nodes = append(plan.Nodes, n.Name)
	}
	return plan
}

// ask requests the plan of the whole roll (once), or the plan of the next turn (as it begins).
//
// Nodes may be deleted or relabeled at any time, so the roll may run out of nodes.
func (r *Roller) ask(stage rollStage) {
	rolling := r.rolling()
	if stage == turnPlanning && len(rolling.Nodes) == 0 {
		r.stop("")
		return
	}
	if why := r.undisturbed(rolling.Nodes); why != "" {
		r.stop(why)
		return
	}
	r.stage, r.at = stage, time.Time{}
	r.addAction(PlanRoll{State: &rebalance.State{AsOf: r.wall(), World: r.cluster.Fork()}, Rolling: rolling, Next: stage == turnPlanning})
}

// planned handles a plan. A refusal, or a pod that fits on no node in any turn, ends the roll
// before any change. An exchange keeps such nodes instead.
func (r *Roller) planned(e RollPlanned) {
	switch r.stage {
	case rollPlanning:
		r.addAction(RollProgress{Result: Proved, Plan: e.Plan})
		switch why := r.options.prevents(e.Plan.Refused(), e.Plan.Stranded(), e.Plan.Pods); {
		case why != "" && r.spare(e.Plan.Turns):
		case why != "":
			r.stop(why)
		case r.options.DryRun || len(e.Plan.Turns) == 0:
			r.stop("")
		default:
			r.ask(turnPlanning)
		}

	case turnPlanning:
		switch {
		case e.Turn == nil:
			r.ask(turnPlanning)
		case e.Turn.Held != "":
			r.hold(e.Turn.Held)
		case (r.tries == mostTries || len(e.Turn.Refused) > 0) && r.spare([]rebalance.Turn{*e.Turn}):
		default:
			r.begin(e.Turn)
		}
	}
}
