package execute

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// DrainOptions say what to drain, and how. They stay the same for the whole drain, except that
// Leaving.Returned grows.
type DrainOptions struct {
	rebalance.Leaving
	// AllowPending continues although successors find no other node.
	AllowPending bool
	// Timeout ends the drain; 0: never.
	Timeout time.Duration
	// DryRun plans, and changes nothing.
	DryRun bool
	// OnlyRestore puts back what a drain that was killed has left of surges, and drains nothing.
	OnlyRestore bool
	// Wall is as in Options.
	Wall func(now time.Time) time.Time
}

// Bounds of a drain. They are short where the drain stands still meanwhile (landsFor), and long
// enough elsewhere not to burden the API server.
const (
	retryAfter = 5 * time.Second  // until a refused eviction is retried, as kubectl does
	landsFor   = 5 * time.Second  // for how long the next eviction waits for a successor to get a node
	plannedFor = 10 * time.Second // for how long a plan is good while only what it predicts happens
	mostFailed = 5                // failed requests for the same eviction, in a row
)

// stage is what a Drainer waits for.
//
//	listing -> recovering -> checking -> cordoning -> replanning <-> emptying -> [closing ->] drained
type stage int

const (
	listing    stage = iota // all objects
	recovering              // surges that an earlier run has left behind
	checking                // the plan, before anything is changed
	cordoning               // the nodes
	emptying                // pods that leave, and plans
	replanning              // a plan
	closing                 // surges, which are put back before the drain ends
	drained                 // nothing: the drain is over
)

// Drainer drains nodes. It cordons them, evicts the pods in the order of a plan, and ends when the
// pods are gone and their successors have a node. The next eviction waits until the successor of
// the previous pod has a node, so that each landing is decided on the state that its plan was made
// on. Pods terminate concurrently, except for those of StatefulSets. If a successor lands
// elsewhere, or another pod gets a node, a new plan is made; if that happens faster than plans are
// made, the newest one counts.
//
// From before each eviction until its successor has a node, Berth's scheduler keeps the room of the
// successor. As with a move, that is not relied on.
//
// It has no journal: the cordoned nodes and the pods on them are all that another run has to know.
//
// Unlike kubectl drain, which evicts all pods at once, it decides for each pod where its successor
// goes before the pod is evicted. Like kubectl drain, it never evicts past a budget, unless it is
// told to.
type Drainer struct {
	machine
	options DrainOptions
	cluster *cluster

	stage    stage
	stopping bool
	begun    time.Time // when it was stepped first; a Roller sets it to when its turn began to drain

	waiting map[Ticket]string // nodes that are being cordoned

	// plan is the newest plan; nil until the first one is there. next is the index of the pod that
	// is evicted next. Pods before it have been tried.
	plan    *rebalance.Draining
	planned time.Time
	stale   bool // the plan is no longer good
	late    int  // plans in a row that were stale when they were ready
	next    int  // of the plan's pods

	// At most one eviction is in flight or waits for a retry, although many pods may be
	// terminating.
	evicting *departure // the eviction in progress
	ticket   Ticket     // of its request; 0: it is tried again at retry
	retry    time.Time
	failed   int        // requests for it that failed
	room     *departure // whose successor's room is kept; nil: none

	under []*departure // pods that were evicted, in order
	// They are not counted as evicted until their pods are seen to leave, nor evicted again without
	// a look at them.
	unsure []*departure // evictions that may come yet: an answer was lost, or they were asked for
	// refused are the pods whose eviction was put off; one stays in it when its time is up, until
	// it is evicted.
	refused map[types.UID]putOff
	surges  *surges
	// restored are surges of an earlier run that were put back. The pods that they had in addition
	// are waited for, until settled, before anything is planned.
	restored []*surge
	settled  time.Time
	rolls    bool                 // it is a Roller's, which plans when it has ended
	tried    map[types.UID]int    // surges of each pod that were given up
	stays    map[types.UID]string // pods that do not leave since their surges failed, and why
	stopped  string               // why the drain ends, while it is closing
	stranded bool                 // it ends because pods of its plan find no node
	waits    string               // the last message about pods that wait for budgets
	count    int                  // pods that have left
}

// putOff is an eviction that the API server refuses for now.
type putOff struct {
	until time.Time
	why   string
}

// departure is a pod that leaves, until it is gone and its successor has a node.
//
// It is created when the pod's turn comes. Its plan does not change any more, also if later plans
// see things differently: what is checked on arrival is what the eviction was based on.
type departure struct {
	rebalance.Departure
	owner rules.Owner
	known map[types.UID]bool // the workload's pods before the eviction
	room  *Flight            // what the scheduler is shown of it; nil: nothing
	maybe bool               // an eviction was sent, and its answer lost
	asked time.Time          // when an EvictionRequest was first there; zero: none
	at    time.Time          // when the eviction was accepted
	left  time.Time          // when it was first seen gone
	// next is "" until the successor is seen; then it is no longer looked for among other pods.
	next  types.UID // the successor
	ended bool      // the successor is no longer waited for
	ahead bool      // the successor was ready before
	// awaited is set once it was said that the successor is waited for.
	awaited bool
}

// follows reports whether the workload's controller makes a successor. When a Job or a controller
// of another kind makes the pod again is up to it: a drain does not wait for these.
func (p *departure) follows() bool {
	kind, _, _ := strings.Cut(p.Owner, "/")
	return !p.Lost && (kind == "ReplicaSet" || kind == "ReplicationController" || kind == statefulSet)
}

// expected returns until when the next eviction waits for the successor to have a node; the zero
// time if the successor is made only when the pod is gone. A StatefulSet's successor is not made
// while the pod terminates, so until then there is no limit, and no other pod is evicted.
func (p *departure) expected() time.Time {
	switch {
	case !strings.HasPrefix(p.Owner, statefulSet+"/"):
		return p.at.Add(landsFor)
	case p.left.IsZero():
		return time.Time{}
	}
	return p.left.Add(landsFor)
}

const statefulSet = "StatefulSet"

// NewDrainer returns a Drainer that has seen nothing of the cluster. The nodes are known when it is
// stepped with Listed.
func NewDrainer(options DrainOptions) *Drainer { return newDrainer(options, newCluster()) }

// newDrainer returns a Drainer that has seen a cluster. The cluster may be shared with the caller,
// which then must not change it while the drain is on: a Roller keeps one for all of its turns.
func newDrainer(options DrainOptions, cluster *cluster) *Drainer {
	d := &Drainer{
		machine: machine{wallOf: options.Wall},
		options: options, cluster: cluster, waiting: map[Ticket]string{}, refused: map[types.UID]putOff{},
		tried: map[types.UID]int{}, stays: map[types.UID]string{},
	}
	d.surges = &surges{host: d, cluster: cluster, grace: options.Grace}
	return d
}

// Step applies an event and returns the actions that follow from it and from the time.
//
// The actions belong to the caller. After DrainDone there are no more.
func (d *Drainer) Step(now time.Time, event Event) []Action {
	d.beginStep(now)
	d.surges.now = now
	if d.begun.IsZero() {
		d.begun = now
		if d.options.Returned == nil {
			d.options.Returned = map[types.UID]bool{}
		}
	}

	switch e := event.(type) {
	case Seen:
		if pod, ok := e.Object.(*v1.Pod); ok && pod.Spec.NodeName != "" {
			before := d.cluster.pod(pod.Namespace, pod.Name, pod.UID)
			// A pod that was not foreseen has taken room that the plan may have given to a
			// successor.
			d.stale = d.stale || (before == nil || before.Spec.NodeName == "") && !d.foretold(pod)
		}
		d.cluster.set(e.Object)
		// Pods that wait for it may leave now: there is no need to wait for the next look.
		if budget, ok := e.Object.(*policyv1.PodDisruptionBudget); ok && budget.Status.DisruptionsAllowed > 0 {
			d.allows(budget)
		}
		d.settles(e.Object)
	case Gone:
		d.cluster.drop(e.Object)
		if budget, ok := e.Object.(*policyv1.PodDisruptionBudget); ok {
			d.allows(budget)
		}
	case Listed:
		if d.stage == listing {
			d.recover()
		}
	case DrainPlanned:
		d.replanned(e.Plan)
	case NoRoom:
		d.do(DrainTold{Result: Roomless, Message: e.Why})
	case Unanswered:
		d.do(DrainTold{Result: Direct, Message: e.Why})
	case Answered:
		d.answered(e)
	case Stop:
		d.stopping = true
	}

	d.advance()
	return d.actions
}

// Wake returns when the next Tick is due if no event comes first. While surges are put back, the
// timeout has had its effect.
func (d *Drainer) Wake() (at time.Time, ok bool) {
	at = d.at
	if end := d.deadline(); !end.IsZero() && d.stage != closing && (at.IsZero() || end.Before(at)) {
		at = end
	}
	return at, !at.IsZero() && d.stage != drained
}

// deadline is when the timeout is over; zero if there is none.
func (d *Drainer) deadline() time.Time {
	if d.options.Timeout == 0 || d.begun.IsZero() {
		return time.Time{}
	}
	return d.begun.Add(d.options.Timeout)
}

// foretold reports whether a pod that has got a node is a successor on the planned node. Then the
// plan is as good as before: it has counted with that pod.
func (d *Drainer) foretold(pod *v1.Pod) bool {
	follows := func(p *departure) bool {
		return !p.ended && p.owner == rules.OwnerOf(pod) && p.To == pod.Spec.NodeName
	}
	return slices.ContainsFunc(d.under, follows) ||
		slices.ContainsFunc(d.surges.list, func(s *surge) bool { return !s.placed && follows(s.departure) })
}

// allows marks the plan as stale if pods wait for the budget.
func (d *Drainer) allows(budget *policyv1.PodDisruptionBudget) {
	if d.plan == nil {
		return
	}
	for i := range d.plan.Pods {
		if p := &d.plan.Pods[i]; p.Waits != "" && p.Namespace == budget.Namespace && p.Budget == budget.Name {
			d.stale = true
		}
	}
}

// settles marks the plan as stale if pods wait for a workload's rollout, for another of its pods or
// for a quota, and that has changed.
func (d *Drainer) settles(object metav1.Object) {
	if d.plan == nil || d.stage != emptying {
		return
	}
	of := ""
	switch o := object.(type) {
	// Its ReplicaSets have its name and a hash. A Deployment whose name begins alike only causes a
	// plan too many.
	case *appsv1.Deployment:
		of = "ReplicaSet/" + o.Name + "-"
	case *appsv1.ReplicaSet:
		of = "ReplicaSet/" + o.Name
	case *v1.Pod:
		owner := metav1.GetControllerOfNoCopy(o)
		if owner == nil || !ready(o) {
			return
		}
		of = "ReplicaSet/" + owner.Name
	case *v1.ResourceQuota: // of all workloads
	default:
		return
	}
	for i := range d.plan.Pods {
		if p := &d.plan.Pods[i]; p.Waits != "" && p.NoSurge != "" && p.Namespace == object.GetNamespace() &&
			strings.HasPrefix(p.Owner, of) {
			d.stale = true
		}
	}
}

// recover puts back what an earlier run has left behind, and then plans.
func (d *Drainer) recover() {
	if !d.options.DryRun {
		d.surges.recover(func(p *v1.Pod) bool { return slices.Contains(d.options.Nodes, p.Spec.NodeName) })
	}
	d.stage = recovering
}

// ask requests a plan, after which the drain is in the given stage. Pods whose surges are under way
// are left to these.
func (d *Drainer) ask(then stage) {
	d.stage, d.at, d.stale = then, time.Time{}, false
	leaving := d.options.Leaving
	// The planner runs on another goroutine, so it gets a copy.
	leaving.Returned, leaving.Begun = maps.Clone(d.options.Returned), then == replanning
	leaving.Surging = map[types.UID]bool{}
	for _, s := range d.surges.list {
		leaving.Surging[s.UID] = true
	}
	d.do(PlanDrain{State: &rebalance.State{AsOf: d.wall(), Objects: slices.Collect(maps.Values(d.cluster.objects))}, Leaving: &leaving})
}

// replanned handles a plan.
//
// The first plan is shown and may refuse the drain; nothing was changed before it. Later ones may
// refuse it, too: a pod may have come since that must not be evicted.
func (d *Drainer) replanned(plan *rebalance.Draining) {
	first := d.stage == checking
	if !first && d.stage != replanning {
		return
	}
	d.plan, d.planned, d.next = plan, d.now, 0
	if d.late++; !d.stale {
		d.late = 0
	}
	// In a busy cluster some pod gets a node while any plan is made: then this one has to do.
	d.stale = d.stale && d.late < mostStale
	if first {
		d.do(DrainTold{Result: Proved, Plan: plan})
	}
	stranded := plan.Stranded()
	switch {
	case len(plan.Refused) > 0:
		d.end(refusals(plan.Refused))
	case stranded > 0 && !d.options.AllowPending:
		d.stranded = true
		d.end(fmt.Sprintf("%d of %d pods would find no other node (--allow-pending goes on nevertheless)", stranded, len(plan.Pods)))
	case d.options.DryRun:
		d.end("")
	case first:
		d.cordon()
	default:
		d.stage = emptying
	}
}

// refusals says which pods prevent the drain, as kubectl does.
//
//	cannot delete Pods with local storage (use --delete-emptydir-data to override): web/a, web/b
func refusals(list []rebalance.Kept) string {
	var reasons []string
	names := map[string][]string{}
	for _, k := range list {
		if names[k.Why] == nil {
			reasons = append(reasons, k.Why)
		}
		names[k.Why] = append(names[k.Why], k.Namespace+"/"+k.Name)
	}
	for i, why := range reasons {
		reasons[i] = why + ": " + strings.Join(names[why], ", ")
	}
	return strings.Join(reasons, "; ")
}

// A node that is cordoned already needs no request.
func (d *Drainer) cordon() {
	d.stage = cordoning
	for _, name := range d.options.Nodes {
		if n := d.cluster.node(name); n != nil && n.Spec.Unschedulable {
			d.do(DrainTold{Result: Cordoned, Node: name, Message: "already cordoned"})
			continue
		}
		ticket := d.nextTicket()
		d.waiting[ticket] = name
		d.do(Cordon{Ticket: ticket, Node: name})
	}
}

// cordoned reports whether all nodes have been seen cordoned. A node that has gone meanwhile does
// not count. The answer to the request is not enough: the plan is made from what has been seen.
func (d *Drainer) cordoned() bool {
	return !slices.ContainsFunc(d.options.Nodes, func(name string) bool {
		n := d.cluster.node(name)
		return n != nil && !n.Spec.Unschedulable
	})
}
