package execute

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// departure is one pod's way out: asked to leave, leaving, gone, and succeeded. A move is one, and
// a drain has many.
//
// It is created when the pod's turn comes. Its plan does not change any more, also if later plans
// see things differently: what is checked on arrival is what the eviction was based on.
type departure struct {
	rebalance.Departure
	owner rules.Owner
	// flight is what the scheduler is shown of it, and the journal of a move has; nil: nothing.
	flight *Flight
	// known tells the successor from the pods that were there. After a restart it is not known
	// which they were; then creation times have to do (see Flight.Begun).
	known map[types.UID]bool // the workload's pods before; nil after a restart
	grace *int64             // overrides that of the pod
	past  bool               // past disruption budgets: the pod is deleted, not evicted

	attempt           // to have it leave
	tried   time.Time // when its eviction was requested first
	answer  string    // what the last answer to that has said
	// maybe: from then on a pod that is gone counts as evicted by this departure.
	maybe bool      // it may have been evicted: an answer was lost, or it was asked for
	asked time.Time // when an EvictionRequest was first there; zero: none

	at     time.Time // since when the pod leaves, as far as is known
	left   time.Time // when it was first seen gone
	landed time.Time // when its successor was first seen on a node
	next   types.UID // the successor, as far as is known
	ended  bool      // the successor is no longer waited for, or was ready before the pod left
	// awaited is set once it was said that the successor is waited for.
	awaited bool
}

// flightOf returns a departure as a journal has it. Only what the scheduler has to know is filled
// in.
func flightOf(p *rebalance.Departure, owner types.UID, begun time.Time) *Flight {
	return &Flight{OwnerUID: owner, Begun: metav1.NewTime(begun), Move: rebalance.Move{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, To: p.To, Surge: p.Surge, Cost: rebalance.Cost{GraceSeconds: p.Grace},
	}}
}

// departureOf returns the departure that is in a journal.
func departureOf(f *Flight) *departure {
	return &departure{flight: f, owner: rules.Owner{Namespace: f.Namespace, UID: f.OwnerUID}, Departure: rebalance.Departure{
		Namespace: f.Namespace, Name: f.Name, UID: f.UID, Owner: f.Owner, From: f.From, To: f.To, Or: f.Or,
		Grace: f.Cost.GraceSeconds, Surge: f.Surge,
	}}
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

// ends returns by when the pod must have ended. A grace period may be longer than a Duration holds.
// leavingFor is added for a kubelet that is slow to report the end.
func (p *departure) ends() time.Time {
	grace := time.Duration(min(p.Grace, int64(longestGrace/time.Second))) * time.Second
	return p.at.Add(grace + leavingFor)
}

// precedes reports whether a pod of the workload was there before the departure.
func (p *departure) precedes(o *v1.Pod) bool {
	if p.known == nil {
		return o.CreationTimestamp.Time.Before(p.flight.Begun.Time)
	}
	return p.known[o.UID]
}

// homeless says what is missing of a pod's successor. With next nil, no successor was seen at all;
// otherwise it ends with the scheduler's message, if there is one.
func homeless(next *v1.Pod) string {
	if next == nil {
		return "no successor was made"
	}
	return "the successor " + next.Name + " has no node" + unschedulable(next)
}

// unschedulable returns the scheduler's message about a pod.
func unschedulable(p *v1.Pod) string {
	for i := range p.Status.Conditions {
		if cond := &p.Status.Conditions[i]; cond.Type == v1.PodScheduled && cond.Status == v1.ConditionFalse && cond.Message != "" {
			return ": " + cond.Message
		}
	}
	return ""
}

// graceOf returns the pod's own grace period in seconds, with the API server's default.
func graceOf(p *v1.Pod) int64 {
	if p.Spec.TerminationGracePeriodSeconds != nil {
		return *p.Spec.TerminationGracePeriodSeconds
	}
	return v1.DefaultTerminationGracePeriodSeconds
}
