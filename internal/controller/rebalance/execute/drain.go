package execute

import (
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
	landsFor   = 5 * time.Second  // for how long the next eviction waits for a successor to get a node
	plannedFor = 10 * time.Second // for how long a plan is good while only what it predicts happens
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
	mover
	options DrainOptions

	stage stage
	begun time.Time // when it was stepped first; a Roller sets it to when its turn began to drain

	waiting map[Ticket]string // nodes that are being cordoned

	// plan is the newest plan; nil until the first one is there. next is the index of the pod that
	// is evicted next. Pods before it have been tried.
	plan    *rebalance.Draining
	planned time.Time
	stale   bool // the plan is no longer good
	late    int  // plans in a row that were stale when they were ready
	next    int  // of the plan's pods

	under []*departure // pods that were evicted, in order
	// They are not counted as evicted until their pods are seen to leave, nor evicted again without
	// a look at them.
	unsure []*departure // evictions that may come yet: an answer was lost, or they were asked for
	// held are the pods whose eviction was put off; one stays in it when its time is up, until
	// it is evicted.
	held map[types.UID]putOff
	// restored are surges of an earlier run that were put back. The pods that they had in addition
	// are waited for, until settled, before anything is planned.
	restored []*surge
	settled  time.Time
	rolls    bool                 // it is a Roller's, which plans when it has ended
	tried    map[types.UID]int    // surges of each pod that were given up
	stays    map[types.UID]string // pods that do not leave since their surges failed, and why
	stopped  string               // why the drain ends, while it is closing
	ended    time.Time            // when closing began
	stranded bool                 // it ends because pods of its plan find no node
	waits    string               // the last message about pods that wait for budgets
	count    int                  // pods that have left
}

// putOff is an eviction that the API server refuses for now.
type putOff struct {
	until time.Time
	why   string
}

// NewDrainer returns a Drainer that has seen nothing of the cluster. The nodes are known when it is
// stepped with Listed.
func NewDrainer(options DrainOptions) *Drainer { return newDrainer(options, newCluster()) }

// newDrainer returns a Drainer that has seen a cluster. The cluster may be shared with the caller,
// which then must not change it while the drain is on: a Roller keeps one for all of its turns.
func newDrainer(options DrainOptions, cluster *cluster) *Drainer {
	d := &Drainer{
		options: options, waiting: map[Ticket]string{}, held: map[types.UID]putOff{},
		tried: map[types.UID]int{}, stays: map[types.UID]string{},
	}
	d.init(d, cluster, options.Wall)
	return d
}

// Step applies an event and returns the actions that follow from it and from the time.
//
// The actions belong to the caller. After DrainDone there are no more.
func (d *Drainer) Step(now time.Time, event Event) []Action {
	d.beginStep(now)
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
		// Pods that wait for it may leave now: there is no need to wait for the next look.
		if budget, ok := e.Object.(*policyv1.PodDisruptionBudget); ok && budget.Status.DisruptionsAllowed > 0 {
			d.allows(budget)
		}
		d.settles(e.Object)
	case Gone:
		if budget, ok := e.Object.(*policyv1.PodDisruptionBudget); ok {
			d.allows(budget)
		}
	case Listed:
		if d.stage == listing {
			d.recover()
		}
	case DrainPlanned:
		d.replanned(e.Plan)
	case Answered:
		d.cordonAnswered(e)
	}

	d.take(event)
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
