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
)

// RollAnnotation is on nodes that are rolled and records their progress. It is all that another run
// needs, and is removed when the roll is complete.
const RollAnnotation = "berth.dev/roll"

// RollNote is the value of RollAnnotation.
//
// It stands on the node, not in a journal, because a roll may take days: kubectl describe node
// shows what is done with the node, and a node that is deleted takes its note along.
type RollNote struct {
	// Begun is when the roll began, and tells it from earlier ones.
	Begun metav1.Time `json:"begun"`
	State RollState   `json:"state"`
	// Cordoned is set if the node was cordoned before. It is cordoned again in the end.
	Cordoned bool `json:"cordoned,omitempty"`
	// Before is what the node was when its turn began, to tell that it has restarted. It is the
	// text of beforeOf, and is only ever compared.
	Before string `json:"before,omitempty"`
	// Instead is the node in whose place this one has come.
	Instead string `json:"instead,omitempty"`
}

// RollState is how far the roll of a node is.
type RollState string

const (
	// A node without a note, or with that of an earlier roll, is in none of these states.
	rollNext RollState = "next" // closed, since its turn is still to come
	rollTurn RollState = "turn" // its turn has begun
	rollDone RollState = "done"
	// One node has it while the notes of a complete roll are removed: a run that finds it has
	// nothing to continue.
	rollComplete RollState = "complete"
)

// Until is what a node's turn waits for once the node is empty.
type Until string

const (
	UntilDrained Until = "drained" // nothing
	UntilReady   Until = "Ready"   // the node has restarted, and is ready
	UntilNew     Until = "new"     // another node has come in its place, and is ready
)

// RollOptions say what to roll, and how.
type RollOptions struct {
	// DrainOptions are those of each turn. Nodes is not used.
	DrainOptions
	Selector labels.Selector
	// AtOnce returns how many nodes, of so many, have their turn together. It is a function because
	// --max-unavailable may be a percentage, and how many nodes there are is known only when they
	// have been seen.
	AtOnce func(nodes int) int
	Until  Until
	// Restart begins anew where an earlier run was not finished.
	Restart bool
}

// rollStage is what a Roller waits for.
//
//	rollListing -> rollRestoring -> rollPlanning -> turnPlanning -> turnClosing -> turnEmptying
//	    -> [turnOpening -> turnRest ->] turnWaiting -> turnEnding -> turnPlanning ...
//	at the end, or when it is stopped: rollReopening -> [rollClearing ->] rollOver
type rollStage int

const (
	rollListing   rollStage = iota // all objects
	rollRestoring                  // surges that an earlier run has left behind
	rollPlanning                   // the plan of the whole
	turnPlanning                   // that of the next turn
	turnClosing                    // the nodes of the turn, and those of later ones
	turnEmptying                   // the drain
	turnOpening                    // the nodes that take what finds no room elsewhere
	turnRest                       // the drain of what is left
	turnWaiting                    // the nodes, which restart or are exchanged
	turnEnding                     // the nodes, which are opened
	rollReopening                  // nodes that were closed for later turns, since the roll stops
	rollClearing                   // the removal of notes, since the roll is complete
	rollOver
)

// Roller rolls nodes. It decides the plan of the whole once, so that it can be shown, and each turn
// anew when it comes, by the same rules. A turn is a Drainer's: what that promises holds here.
//
// Which nodes are done stands on the nodes. So a run that is killed is followed by one that goes on
// with the nodes whose turn had begun.
//
// Its own requests are SetNode and PlanRoll. Everything else that it asks for comes from the
// Drainer of the turn, whose actions and answers it passes on.
type Roller struct {
	machine
	options RollOptions
	// cluster is shared with the drainer, which writes it while it is there; see pass.
	cluster *cluster
	drainer *Drainer // of the turn; nil between drains

	stage    rollStage
	last     rollStage // when entered was set
	entered  time.Time // when the stage began
	listed   bool
	stopping bool

	// begun identifies the roll: notes with another time are of other rolls. It is not when this
	// process began.
	begun  metav1.Time
	total  int
	closed map[string]bool // nodes that were cordoned before
	turn   *rebalance.Turn
	// A node of the turn that is in none of these maps had gone before its turn.
	uids   map[string]types.UID // of the turn's nodes
	before map[string]string    // what they were
	came   map[string]string    // a node that has come in the place of another one, by that one
	tries  int                  // of the turn
	// draining is when the first drain of the turn began; zero before.
	draining time.Time
	evicted  int
	rolled   int // nodes that are done, counted before their notes are removed
	stopped  string
	waits    string // the last message about nodes that are waited for

	// wanted is what nodes are to be, until they have been seen so; each stage sets its own. writes
	// are those that lead there.
	wanted map[string]SetNode
	writes map[string]*attempt // by node
}

// rollTickets are above those of any Drainer, so that an answer tells whose it is.
const rollTickets = Ticket(1) << 32

// NewRoller returns a Roller that has seen nothing of the cluster. The nodes are known when Listed
// comes.
func NewRoller(options RollOptions) *Roller {
	return &Roller{
		machine: machine{tickets: rollTickets, wallOf: options.Wall},
		options: options, cluster: newCluster(), closed: map[string]bool{}, came: map[string]string{}, writes: map[string]*attempt{},
	}
}

// Step applies an event and returns the actions that follow from it and from the time.
//
// The actions belong to the caller. After RollDone there are no more.
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

// pass hands an event to the drain of the turn, which shares what has been seen of the cluster.
// Either the drainer or the Roller updates the cluster, never both.
func (r *Roller) pass(event Event) {
	if r.drainer != nil {
		r.drain(event)
		return
	}
	r.cluster.see(event)
	switch e := event.(type) {
	case NoRoom:
		r.do(DrainTold{Result: Roomless, Message: e.Why})
	case Unanswered:
		r.do(DrainTold{Result: Direct, Message: e.Why})
	}
}

// beginDrain begins a drain whose timeout counts from the given time. The drainer finds the cluster
// as the roll has seen it, so it needs no events but Listed.
func (r *Roller) beginDrain(options DrainOptions, begun time.Time) {
	options.Returned = map[types.UID]bool{}
	r.at = time.Time{} // until it is over, only the drainer sets alarms
	r.drainer = newDrainer(options, r.cluster)
	r.drainer.begun, r.drainer.rolls = begun, true
	r.drain(Listed{})
}

// drain hands an event to the drain of the turn, and takes up what it does. DrainDone stays inside,
// since it ends a turn and not the roll.
func (r *Roller) drain(event Event) {
	if r.drainer == nil {
		return
	}
	for _, action := range r.drainer.Step(r.now, event) {
		switch a := action.(type) {
		case DrainDone:
			r.drained(a)
		case DrainTold:
			if a.Result != Cordoned && a.Result != Proved { // the roll has said that
				r.do(a)
			}
		default:
			r.do(a)
		}
	}
}

// Wake returns when the next Tick is due if no event comes first.
func (r *Roller) Wake() (at time.Time, ok bool) {
	at = r.at
	if r.drainer != nil {
		if inner, ok := r.drainer.Wake(); ok && (at.IsZero() || inner.Before(at)) {
			at = inner
		}
	}
	return at, !at.IsZero() && r.stage != rollOver
}

// noteOf returns what a node says of a roll. ok is false without the annotation, or if it is no
// note.
func noteOf(n *v1.Node) (note RollNote, ok bool) {
	return note, json.Unmarshal([]byte(n.Annotations[RollAnnotation]), &note) == nil
}

// nodes are those that the selector selects. They are read from the cluster each time, since nodes
// come and go in a roll.
func (r *Roller) nodes() []*v1.Node {
	return slices.DeleteFunc(r.cluster.nodes(), func(n *v1.Node) bool { return !r.options.Selector.Matches(labels.Set(n.Labels)) })
}

// nodeReady reports whether a node can take pods, but for being cordoned.
func nodeReady(n *v1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady &&
			c.Status == v1.ConditionTrue
	})
}

// beforeOf is what a node is: it differs once the node has restarted, or was not ready for a
// moment. A node that was made anew has another UID, and one that was rebooted another boot ID; one
// whose kubelet or runtime was exchanged in place has another version.
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

// find reads from the nodes how far an earlier run has come, and decides which roll this is.
//
// The roll is the newest one that any node has a note of, unless all of its nodes are done, or
// Restart is set: then it is a new one. Its time is made later than that of the last one, so that
// notes of the two cannot be confused, even if both begin within a second.
//
// find reports whether the newest roll is complete, and only its notes remain to be removed.
func (r *Roller) find() (complete bool) {
	finished := true
	for _, n := range r.nodes() {
		if note, ok := noteOf(n); ok && note.Begun.After(r.begun.Time) {
			r.begun = note.Begun
		}
	}
	for _, n := range r.nodes() {
		note, ok := noteOf(n)
		complete = complete || ok && note.State == rollComplete
		finished = finished && r.is(n, rollDone)
	}
	if complete && !r.options.Restart {
		return true
	}
	finished = finished || complete
	resumed := !finished && !r.begun.IsZero() && !r.options.Restart
	if !resumed {
		r.begun = metav1.NewTime(latest(r.wall().Truncate(time.Second), r.begun.Add(time.Second)))
	}
	for _, n := range r.nodes() {
		note, ok := noteOf(n)
		r.closed[n.Name] = n.Spec.Unschedulable
		// So its cordon says nothing; the note has what it was before.
		if ok && note.State != rollDone && note.State != rollComplete { // it is cordoned by a roll
			r.closed[n.Name] = note.Cordoned
		}
	}
	r.total = len(r.nodes())
	if resumed {
		r.do(RollTold{Result: Resumed, Message: fmt.Sprintf("going on with the roll that began at "+
			"%s: %d of %d nodes are done", r.begun.UTC().Format(time.RFC3339), r.done(), r.total)})
	}
	return false
}

// is reports whether the roll of a node is that far. A node that is younger than the roll is done.
// It was made after the roll began, so it is as new as a rolled node: it needs no turn.
func (r *Roller) is(n *v1.Node, state RollState) bool {
	note, ok := noteOf(n)
	switch {
	case ok && note.Begun.Equal(&r.begun):
		return note.State == state
	case !r.begun.IsZero() && n.CreationTimestamp.After(r.begun.Time):
		return state == rollDone
	}
	return false
}

// restore puts back what a run that was killed has left of surges, and then asks for the plan of
// the whole. The additional replicas take up room, and a plan that counts them may be refused: then
// no turn would begin, and nobody put them back.
func (r *Roller) restore() {
	r.stage = rollRestoring
	options := r.options.DrainOptions
	options.Nodes, options.OnlyRestore = r.rolling().Nodes, true
	r.beginDrain(options, r.now)
}

// rolling is what the planner has to know. The caller owns what it returns.
func (r *Roller) rolling() *rebalance.Rolling {
	plan := &rebalance.Rolling{Leaving: r.options.Leaving, AtOnce: r.options.AtOnce(r.total), Closed: maps.Clone(r.closed)}
	plan.Nodes = nil
	for _, n := range r.nodes() {
		switch {
		case r.is(n, rollDone):
			// Nodes with a note come first: by them the zone is known in which the roll goes on.
			if _, noted := noteOf(n); noted {
				plan.Done = slices.Insert(plan.Done, 0, n.Name)
			} else {
				plan.Done = append(plan.Done, n.Name)
			}
			continue
		case r.is(n, rollTurn):
			plan.Begun = append(plan.Begun, n.Name)
		}
		plan.Nodes = append(plan.Nodes, n.Name)
	}
	return plan
}

// ask requests the plan of the next turn, or of the whole. The plan of the whole is asked for once,
// that of each turn when it comes.
//
// Nodes may be deleted or relabeled at any time, so that none is left.
func (r *Roller) ask(stage rollStage) {
	rolling := r.rolling()
	if stage == turnPlanning && len(rolling.Nodes) == 0 {
		r.stop("")
		return
	}
	r.stage, r.at = stage, time.Time{}
	r.do(PlanRoll{State: &rebalance.State{AsOf: r.wall(), World: r.cluster.Fork()}, Rolling: rolling, Next: stage == turnPlanning})
}

// planned handles a plan. A refusal or a pod without a node in any turn ends the roll before it has
// changed anything.
func (r *Roller) planned(e RollPlanned) {
	switch r.stage {
	case rollPlanning:
		r.do(RollTold{Result: Proved, Plan: e.Plan})
		switch why := r.options.prevents(e.Plan.Refused(), e.Plan.Stranded(), e.Plan.Pods); {
		case why != "":
			r.stop(why)
		case r.options.DryRun || len(e.Plan.Turns) == 0:
			r.stop("")
		default:
			r.ask(turnPlanning)
		}
	case turnPlanning:
		if e.Turn == nil {
			r.ask(turnPlanning)
			return
		}
		r.begin(e.Turn)
	}
}
