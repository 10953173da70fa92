// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// DrainOptions configure a drain. They are constant for the whole drain, except for
// Leaving.Returned, which grows.
type DrainOptions struct {
	rebalance.Leaving
	// AllowPending continues even if successors do not fit on another node.
	AllowPending bool
	// Timeout ends the drain; 0 means never.
	Timeout time.Duration
	// DryRun plans without changing anything.
	DryRun bool
	// OnlyRestore undoes surges left behind by a killed drain, and drains nothing.
	OnlyRestore bool
	// Wall has the same meaning as in Options.
	Wall pacing.Wall
}

// Bounds of a drain. They are short for waits that block the drain (landsFor), and otherwise long
// enough to spare the API server.
const (
	landsFor   = 5 * time.Second  // limit of the wait for a successor to be scheduled, before the next eviction
	plannedFor = 10 * time.Second // validity of a plan while only predicted changes occur
	// mostUnplaced is the maximum number of successors that are awaited at the same time.
	mostUnplaced = 30
)

// stage is the state of the Drainer's state machine.
//
//	listing -> recovering -> checking -> cordoning -> replanning <-> emptying -> [closing ->] drained
type stage int

const (
	listing    stage = iota // waits until all objects are listed
	recovering              // undoes surges left behind by an earlier run
	checking                // checks the plan before anything is changed
	cordoning               // cordons the nodes
	emptying                // removes pods, and replans
	replanning              // waits for a plan
	closing                 // undoes surges before the drain ends
	drained                 // the drain is over
)

// Drainer drains nodes. It cordons them, evicts the pods in the order of a plan, and ends when the
// pods are deleted and their successors are scheduled. Pods of different workloads leave together,
// because the room of each successor is reserved; the next pod of a workload leaves when the
// successor of the previous one is scheduled. Pods terminate concurrently, except for the pods of a
// StatefulSet. If a successor lands elsewhere, or another pod is scheduled, the Drainer replans; if
// pods are scheduled faster than plans complete, the newest plan is used.
//
// Berth's scheduler reserves the successor's room from the time of the eviction request until the
// successor is scheduled. Without reservations, a pod leaves when the successors of all previous
// pods are scheduled.
//
// Drainer has no journal: another run needs only the cordoned nodes and the pods on them.
//
// Unlike kubectl drain, which evicts all pods concurrently, Drainer chooses a destination for each
// successor before evicting the pod. Like kubectl drain, it never violates a budget unless
// instructed to.
type Drainer struct {
	mover
	options DrainOptions

	stage stage
	begun time.Time // time of the first step; a Roller sets it to the start of the turn's first drain

	waiting map[response.Ticket]string // nodes being cordoned

	// plan is the newest plan; nil until the first one is complete. due holds its pods that have
	// not been tried.
	plan    *rebalance.Draining
	planned time.Time
	stale   bool // the plan is no longer valid
	late    int  // consecutive plans that were stale on completion
	due     []*rebalance.Departure

	inProgress []*departure // evicted pods, in order
	// The pods in unsure count as evicted only once they are observed to terminate. They are
	// checked before another eviction.
	unsure []*departure // evictions that may still happen: the response was lost, or an EvictionRequest exists
	// held maps the pods refused for now. A pod stays in held until it is evicted, even after its
	// deadline.
	held map[types.UID]putOff
	// restored holds the surges of an earlier run that this run has undone. Planning waits for the
	// removal of their additional pods, but not beyond the time settled.
	restored []*surge
	settled  time.Time
	rolls    bool                 // a Roller began this drain, and plans again after it
	tried    map[types.UID]int    // number of abandoned surges, by pod
	stays    map[types.UID]string // pods that stay because their surges failed, with the reason
	stopped  string               // reason for the end of the drain, while closing
	ended    time.Time            // when closing began
	stranded bool                 // the drain ends because pods of its plan fit on no node
	waits    string               // the last reported message about waiting pods
	silent   map[string]int       // number of pods last reported as terminating on a silent node, by node
	count    int                  // evicted pods
}

// putOff is an eviction currently refused by the API server.
type putOff struct {
	until time.Time
	why   string
}

// NewDrainer returns a Drainer without any cluster state. The drain begins with the event Listed.
func NewDrainer(options DrainOptions) *Drainer { return newDrainer(options, newCluster()) }

// newDrainer returns a Drainer with existing cluster state. The caller may share the cluster but
// must not change it during the drain: a Roller keeps one for all of its turns.
func newDrainer(options DrainOptions, cluster *cluster) *Drainer {
	d := &Drainer{
		options: options, waiting: map[response.Ticket]string{}, held: map[types.UID]putOff{},
		tried: map[types.UID]int{}, stays: map[types.UID]string{}, silent: map[string]int{},
	}
	d.init(d, cluster, options.Wall)
	return d
}

// Step applies an event and returns the actions caused by the event and by the passing of time.
//
// The caller owns the actions. DrainDone is the last action.
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
			// An unforeseen pod has taken room that the plan may have assigned to a successor.
			d.stale = d.stale || (before == nil || before.Spec.NodeName == "") && !d.isPlannedSuccessor(pod)
		}
		// Pods waiting for this budget may be evicted now, so a new plan is requested immediately.
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

// Wake returns the time of the next Tick, unless an event arrives first. In the stage closing, the
// timeout no longer matters.
func (d *Drainer) Wake() (at time.Time, ok bool) {
	at = d.at
	if d.stage != closing {
		at = pacing.Sooner(at, d.deadline())
	}
	return at, !at.IsZero() && d.stage != drained
}

// deadline returns the time at which the drain times out, or the zero time without a timeout.
func (d *Drainer) deadline() time.Time {
	if d.options.Timeout == 0 || d.begun.IsZero() {
		return time.Time{}
	}
	return d.begun.Add(d.options.Timeout)
}

// isPlannedSuccessor reports whether a newly scheduled pod is a successor on its planned node. The
// plan already includes that pod, and stays valid.
func (d *Drainer) isPlannedSuccessor(pod *v1.Pod) bool {
	follows := func(p *departure) bool {
		return !p.ended && p.owner == rules.OwnerOf(pod) && p.To == pod.Spec.NodeName
	}
	return slices.ContainsFunc(d.inProgress, follows) ||
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

// settles marks the plan as stale if a pod of the plan waits for this object: for the rollout of a
// workload, for another pod of a workload, or for a quota.
func (d *Drainer) settles(object metav1.Object) {
	if d.plan == nil || d.stage != emptying {
		return
	}
	of := ""
	switch o := object.(type) {
	// A ReplicaSet's name consists of the Deployment's name and a hash. If the name of another
	// Deployment begins with the same text, its ReplicaSets match as well, which only causes a
	// superfluous plan.
	case *appsv1.Deployment:
		of = "ReplicaSet/" + o.Name + "-"
	case *appsv1.ReplicaSet:
		of = "ReplicaSet/" + o.Name
	case *v1.Pod:
		owner := metav1.GetControllerOfNoCopy(o)
		if owner == nil || !rules.HasReadyCondition(o) {
			return
		}
		of = "ReplicaSet/" + owner.Name
	case *v1.ResourceQuota: // concerns all workloads
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
