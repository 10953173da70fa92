// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// DefaultSearchLimit is the default of Options.SearchLimit.
const DefaultSearchLimit = gang.DefaultSearchLimit

// Options configures a core. New requires at least one profile; the zero value of every other field
// is useful.
type Options struct {
	Profiles []Profile
	// Seed determines all random choices: the choice between equally good nodes, and the choice of
	// the attempts whose plugins are timed.
	Seed uint64
	// FirstBackoff, LastBackoff and MaxWait configure the queue; 0 means the queue's default.
	FirstBackoff, LastBackoff, MaxWait time.Duration
	// Shadow, if set, makes the core compare the placements made by other schedulers for the pods
	// of its profiles, as its result judges them. Such a core never leads.
	Shadow func(*Core) Shadow
	// Observer, if set, receives metrics. Stopwatch, if set, is the clock for the durations in
	// metrics. Neither influences decisions.
	Observer  Observer
	Stopwatch func() time.Time
	// Objects, if set, receives the API objects of nodes, pods and pod groups.
	Objects Objects
	// Groups enables features of pod groups. SearchLimit is the maximum number of node evaluations
	// in a search for a placement of a group with differing pods. It also limits the domains of a
	// topology key tried by an attempt. 0 means [DefaultSearchLimit].
	Groups      groups.Gates
	SearchLimit int
	// Unhurried attempts for groups do not end early for other waiting pods. It is set for
	// forecasts.
	Unhurried bool
	Disabled  Disabled
	// ResizePreemption (InPlacePodVerticalScalingSchedulerPreemption): a resize deferred by the
	// kubelet preempts pods of lower priority on its node.
	ResizePreemption bool
	// PrepareAside makes plugins prepare a pod's data asynchronously before the pod is decided; see
	// [Ask] and [plugins.Preparer]. Otherwise the deciding goroutine computes it on demand.
	PrepareAside bool
	// Prefer, if set, replaces the random choice between nodes with equal scores; see
	// [decide.Decider].
	Prefer func(*cluster.Pod) string
}

// Disabled lists features of the cycle that are enabled unless disabled by an upstream feature
// gate.
type Disabled struct {
	// PopFromBackoff (SchedulerPopFromBackoffQ): an idle scheduler does not decide rejected pods
	// before their back-off is over, including pods with terminated victims.
	PopFromBackoff bool `json:"popFromBackoff,omitempty"`
	// Expectation (NominatedNodeNameForExpectation): the node of a pod waiting at Permit, or for
	// writes of objects, is not written to nominatedNodeName.
	Expectation bool `json:"expectation,omitempty"`
	// DeviceTaintRules (DRADeviceTaintRules): DeviceTaintRules are not followed, and taint no
	// devices.
	DeviceTaintRules bool `json:"deviceTaintRules,omitempty"`
}

// Shadow stands between the events and a core that compares the placements of another scheduler. It
// restores the cluster states in which that scheduler may have decided; see package reconstruct.
type Shadow interface {
	// DelayEvent passes an event to take, now or in a later step, and the delayed events now due.
	DelayEvent(now time.Time, e Event, take func(Event))
	// NextDue returns the time at which the next delayed event is due. ok is false if there is
	// none.
	NextDue() (at time.Time, ok bool)
	// Judge calls evaluate in possible states of the cluster at the decision about a pod bound to a
	// node. It returns one of the evaluations, and whether other states were possible.
	Judge(item *queue.Item, node string, evaluate func() *decide.Evaluation) (evaluation *decide.Evaluation, unclear bool)
}
