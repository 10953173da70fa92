// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Observer observes the scheduler for metrics. Its methods are called often and from several
// goroutines: they must be fast and safe for concurrent use. Embed [NoObserver] to implement only
// some of them.
type Observer interface {
	// Attempted: an attempt ended. took is the time since the pod was popped from the queue.
	Attempted(profile string, result Result, took time.Duration)
	// Decided: the search for a node ended, with or without a node; took includes preemption.
	Decided(took time.Duration)
	// Ran: all plugins of an extension point were called for one pod. It is reported only for the
	// points run by the cycle: PreEnqueue, PostFilter, Reserve, Permit, PreBind, Bind, PostBind.
	Ran(profile string, point plugins.Point, ok bool, took time.Duration)
	// RanPlugin: one plugin was called at such a point. It is reported for one attempt in ten.
	RanPlugin(plugin string, point plugins.Point, ok bool, took time.Duration)
	// Queued: a pod entered one of the queues, because of the event with that label.
	Queued(place queue.Place, event string)
	// EntityQueued: an entity (a pod group or an ungrouped pod) entered one of the queues because
	// of the event with that label. All pods of a group enter together.
	EntityQueued(place queue.Place, event string, group bool)
	// Bound: a pod was scheduled. tries is the number of attempts, and sinceFirst is the time since
	// the pod was first admitted. afterFlush: its last attempt was triggered by Queue.Flush, after
	// the maximum wait.
	Bound(tries int, sinceFirst time.Duration, afterFlush bool)
	// Rejected: the number of pods waiting because of the plugin changed by delta (1 or -1).
	Rejected(plugin, profile string, delta int)
	// Preempted: preemption was tried, for a pod or a pod group.
	Preempted(p Preempted)
	// RemovedVictims: all removals for one preemptor, a pod or a pod group, have completed.
	RemovedVictims(group, ok bool, took time.Duration)
	// GeneratedPlacements: a pod group about to be placed has count possible placements. A
	// placement is a domain of its topology key, or all nodes. EvaluatedPlacements: count
	// placements were evaluated, with the same result: the group fits (feasible) or does not fit.
	// took is the time for each of them.
	GeneratedPlacements(profile string, count int)
	EvaluatedPlacements(profile string, feasible bool, count int, took time.Duration)
	// Permitted: a pod's wait at Permit ended; result is "allowed", "rejected" or "timed out".
	Permitted(result string, took time.Duration)
	// AwaitedDevice: a pod's wait for its devices ended. It is reported for each device of the pod;
	// own is set if the device itself has binding conditions. how is "success", "failure",
	// "timeout" or "error".
	AwaitedDevice(profile, driver, how string, own bool, took time.Duration)
	// MadeClaim: the creation of a claim for a pod's extended resources was attempted.
	MadeClaim(ok bool)
	// VolumesFailed: volumes could not be checked for a node ("predicate"), assumed ("assume"), or
	// bound ("bind").
	VolumesFailed(at string)
	// Handled: an event about an object of this kind was processed.
	Handled(resource queue.Resource, action queue.Action, took time.Duration)
	// Hinted: a hint of a plugin was called for an event and a pod rejected by the plugin.
	Hinted(plugin string, event string, wake bool, took time.Duration)
	// BindRefused: a binding was refused; reason is the reason from the API, such as Conflict, or
	// empty.
	BindRefused(reason string)
	// Binding: the number of bindings in progress changed by delta (1 or -1).
	Binding(delta int)
	// Panics: a decision panicked, or a plugin panicked during a pod's binding.
	Panics()
	// AttemptedGroup: an attempt at a pod group ended. The pods of the group are also counted one
	// by one.
	AttemptedGroup(profile string, result Result, took time.Duration)
	// DecidedGroup: the search for a group's nodes ended, successfully or not; took includes
	// preemption.
	DecidedGroup(took time.Duration)
}

// Result is the result of an attempt.
type Result string

// The results, with the names of upstream's metrics.
const (
	Scheduled     Result = "scheduled"
	Unschedulable Result = "unschedulable"
	Errored       Result = "error"
	// WaitingOnPreemption applies only to groups: room is being made for the group.
	WaitingOnPreemption Result = "waiting_on_preemption"
)

// Preempted describes the preemption for one preemptor.
type Preempted struct {
	Group    bool // the preemptor is a pod group
	Status   PreemptionOutcome
	Searched bool // victims were searched for; false for a group that may not preempt
	Took     time.Duration

	Victims    int // number of victim pods; 0 if preemption cannot help
	Whole      int // number of pod groups that are preempted as a whole
	Violations int // number of victims with a disruption budget that does not allow the disruption
}

// PreemptionOutcome is the result of a search for victims, with the names of upstream's status
// codes.
type PreemptionOutcome string

// The outcomes. A pod group without potential victims is Unresolvable.
const (
	FoundVictims PreemptionOutcome = "Success"
	NoHelp       PreemptionOutcome = "Unschedulable"
	Unresolvable PreemptionOutcome = "UnschedulableAndUnresolvable"
	Broken       PreemptionOutcome = "Error"
)

// NoObserver ignores everything.
type NoObserver struct{}

// RanPlugin does nothing, like all other methods.
func (NoObserver) RanPlugin(string, plugins.Point, bool, time.Duration)  {}
func (NoObserver) Attempted(string, Result, time.Duration)               {}
func (NoObserver) Decided(time.Duration)                                 {}
func (NoObserver) Ran(string, plugins.Point, bool, time.Duration)        {}
func (NoObserver) Queued(queue.Place, string)                            {}
func (NoObserver) EntityQueued(queue.Place, string, bool)                {}
func (NoObserver) Bound(int, time.Duration, bool)                        {}
func (NoObserver) Rejected(string, string, int)                          {}
func (NoObserver) Preempted(Preempted)                                   {}
func (NoObserver) RemovedVictims(bool, bool, time.Duration)              {}
func (NoObserver) GeneratedPlacements(string, int)                       {}
func (NoObserver) EvaluatedPlacements(string, bool, int, time.Duration)  {}
func (NoObserver) Permitted(string, time.Duration)                       {}
func (NoObserver) AwaitedDevice(_, _, _ string, _ bool, _ time.Duration) {}
func (NoObserver) MadeClaim(bool)                                        {}
func (NoObserver) VolumesFailed(string)                                  {}
func (NoObserver) Handled(queue.Resource, queue.Action, time.Duration)   {}
func (NoObserver) Hinted(string, string, bool, time.Duration)            {}
func (NoObserver) AttemptedGroup(string, Result, time.Duration)          {}
func (NoObserver) DecidedGroup(time.Duration)                            {}
func (NoObserver) BindRefused(string)                                    {}
func (NoObserver) Binding(int)                                           {}
func (NoObserver) Panics()                                               {}

var _ Observer = NoObserver{}
