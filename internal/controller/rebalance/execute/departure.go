// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// departure tracks one pod from the request to leave, through termination, to its successor. A move
// has one departure, a drain has many.
//
// It is created when the pod's turn arrives. Its plan is fixed even if later plans differ, because
// the arrival is checked against the plan behind the eviction.
type departure struct {
	rebalance.Departure
	owner rules.Owner
	// flight is the departure as published to the scheduler and journaled for a move; nil means
	// none.
	flight *Flight
	// known distinguishes the successor from existing pods. These are unknown after a restart;
	// creation times substitute for them then (see Flight.Begun).
	known map[types.UID]bool // the workload's pods before; nil after a restart
	grace *int64             // overrides that of the pod
	past  bool               // past disruption budgets: the pod is deleted, not evicted

	attempt           // to have it leave
	tried   time.Time // when its eviction was requested first
	answer  string    // the content of the last answer to that
	// maybe: a pod missing from then on counts as evicted by this departure.
	maybe bool      // it may have been evicted: an answer was lost, or it was asked for
	asked time.Time // when an EvictionRequest was first there; zero: none

	at     time.Time // since when the pod leaves, as far as is known
	left   time.Time // when it was first seen gone
	landed time.Time // when its successor was first seen on a node
	next   types.UID // the successor, as far as is known
	ended  bool      // the successor is no longer waited for, or was ready before the pod left
	// awaited is set once the wait for the successor has been reported.
	awaited bool
}

// flightOf returns a departure in its journal form, with only the fields needed by the scheduler.
func flightOf(p *rebalance.Departure, owner types.UID, begun time.Time) *Flight {
	return &Flight{OwnerUID: owner, Begun: metav1.NewTime(begun), Move: rebalance.Move{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, To: p.To, Surge: p.Surge, Cost: rebalance.Cost{GraceSeconds: p.Grace},
	}}
}

// departureOf returns the departure recorded in a journal.
func departureOf(f *Flight) *departure {
	return &departure{flight: f, owner: rules.Owner{Namespace: f.Namespace, UID: f.OwnerUID}, Departure: rebalance.Departure{
		Namespace: f.Namespace, Name: f.Name, UID: f.UID, Owner: f.Owner, From: f.From, To: f.To, Or: f.Or,
		Grace: f.Cost.GraceSeconds, Surge: f.Surge,
	}}
}

// follows reports whether the workload's controller creates a successor. Jobs and custom
// controllers recreate pods at their discretion, so a drain does not wait for them.
func (p *departure) follows() bool {
	kind, _, _ := strings.Cut(p.Owner, "/")
	return !p.Lost && (kind == "ReplicaSet" || kind == "ReplicationController" || kind == statefulSet)
}

// expected returns the time until which the next eviction waits for the successor to be scheduled,
// or the zero time if the successor is created only after the pod is deleted. A StatefulSet creates
// its successor only after the pod has terminated; until then there is no limit, and no other pod
// is evicted.
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

// ends returns the time by which the pod must have terminated. A grace period may exceed the range
// of a Duration. leavingFor allows for a kubelet that reports termination late.
func (p *departure) ends() time.Time {
	grace := time.Duration(min(p.Grace, int64(longestGrace/time.Second))) * time.Second
	return p.at.Add(grace + leavingFor)
}

// precedes reports whether a pod of the workload existed before the departure.
func (p *departure) precedes(o *v1.Pod) bool {
	if p.known == nil {
		return o.CreationTimestamp.Time.Before(p.flight.Begun.Time)
	}
	return p.known[o.UID]
}

// homeless returns a message about a pod's missing or unscheduled successor. A nil next means that
// no successor was observed; otherwise the message ends with the scheduler's, if there is one.
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

// graceOf returns the pod's grace period in seconds, with the API server's default.
func graceOf(p *v1.Pod) int64 {
	if p.Spec.TerminationGracePeriodSeconds != nil {
		return *p.Spec.TerminationGracePeriodSeconds
	}
	return v1.DefaultTerminationGracePeriodSeconds
}
