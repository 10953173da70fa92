// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"encoding/json"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// departure tracks the removal of one pod: the eviction request, the termination, and the arrival
// of the successor. A move has one departure, a drain has many.
//
// It is created when the pod's turn arrives. It embeds the pod's entry in the plan that caused the
// eviction, because the arrival is checked against that plan even if later plans differ.
type departure struct {
	rebalance.Departure
	owner rules.Owner
	// flight is the form of the departure that is published to the scheduler as a reservation and,
	// for a move, journaled. It is nil without a reservation.
	flight *Flight
	// known distinguishes the successor from pods that existed before. After a restart it is nil,
	// and creation times are compared instead (see Flight.Begun).
	known map[types.UID]bool // the workload's pods before the departure
	grace *int64             // overrides the pod's grace period
	past  bool               // bypass disruption budgets: the pod is deleted, not evicted

	attempt           // the eviction attempt
	tried   time.Time // time of the first eviction request
	answer  string    // message of the last response to an eviction request
	// Once maybe is set, a missing pod counts as evicted by this departure.
	maybe bool      // the pod may have been evicted: a response was lost, or an EvictionRequest exists
	asked time.Time // time of the first response Asked; zero if there is no EvictionRequest

	at     time.Time // time at which the pod was first known to be leaving; zero before
	left   time.Time // time at which the pod was first observed as deleted
	landed time.Time // time at which the successor was first observed on a node
	next   types.UID // the observed successor; "" if unknown
	ended  bool      // the successor is no longer waited for, or was ready before the pod left
	placed bool      // the successor's node has been reported; of a surge
	bad    time.Time // time since which the successor's container has failed to start; of a surge
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

// Reservations are departures with capacity reserved for their successors.
type Reservations []*Flight

// Text returns the reservations as published in the Lease, or "" without any. It is identical for
// the same moves in every process. The Lease's reservations are compared with it as text, so its
// fields must be in a fixed order, and times in whole seconds.
func (rs Reservations) Text() string {
	var shown []cycle.MoveReservation
	for _, f := range rs {
		if f.To != "" {
			shown = append(shown, cycle.MoveReservation{
				Namespace: f.Namespace, Name: f.Name, UID: f.UID, Owner: f.OwnerUID, Node: f.To,
				Ahead: f.Surge != nil, GraceSeconds: f.Cost.GraceSeconds, Begun: f.Begun.UTC().Format(time.RFC3339),
			})
		}
	}
	if text, err := json.Marshal(shown); err == nil && shown != nil {
		return string(text)
	}
	return ""
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
// no successor was observed. Otherwise the message ends with the scheduler's message, if any.
func homeless(next *v1.Pod) string {
	if next == nil {
		return "no successor was created"
	}
	return "the successor " + next.Name + " has no node" + unschedulable(next)
}

// unschedulable returns the scheduler's message about a pod.
func unschedulable(p *v1.Pod) string {
	if c := rules.PodCondition(&p.Status, v1.PodScheduled); c != nil && c.Status == v1.ConditionFalse && c.Message != "" {
		return ": " + c.Message
	}
	return ""
}
