// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Options configure a simulation. The zero value uses the default profile and lets no time pass. A
// world keeps them, and gives copies to its twins.
type Options struct {
	// Profiles serve pods by their scheduler name. If it is empty, the default profile is used.
	Profiles []*plugins.Profile
	// Gates are feature gates by name; see [Gates] for the unset ones.
	Gates map[string]bool
	// Admission configures the admission of new pods.
	Admission admission.Config
	// Seed breaks ties between equally good nodes, and generates names. The same seed gives the
	// same result.
	Seed uint64
	// Explain adds every plugin's verdict on every node to each decision. It suits only a few pods,
	// because each pod gets as many verdicts as plugins times nodes.
	Explain bool
	// For is the time simulated after all pods have been tried. Evictions become due, controllers
	// replace the evicted pods, and pending pods are retried whenever something changes. If it is
	// 0, each pod is tried once.
	For time.Duration
	// Discard releases the set's pods during admission. This halves memory use, but the set cannot
	// be used afterwards.
	Discard bool
	// Unseen hides pending pods from the scheduler until the first attempts or [World.Introduce].
	// Before that, their position in the queue is undefined.
	Unseen bool
	// Now is the time at which the world begins; by default the latest time in the manifests.
	Now time.Time
	// Scenario holds the operations to carry out as time passes; nil means none.
	Scenario *Scenario
	// Read reads manifests to be deployed by a scenario or an operation; if nil, deploying is
	// impossible. A server must pass a function that opens no files of its host.
	Read func(files []string, over *manifest.Set) (*manifest.Set, error)
	// Health configures node health; the zero value means kube-controller-manager's defaults.
	Health nodehealth.Options
	// Allowance bounds the cost of the world.
	Allowance Allowance
	// Progress, if set, is called every progressEvery decisions with the number of decided pods and
	// the total.
	Progress func(decided, pods int)
}

// Run simulates the set and returns the result. It modifies the set by expanding its workloads. A
// pod that the API server would refuse is an error, like other faults in manifests.
//
//	time   0                                          o.For
//	       try all pods - events, evictions, retries - end; what is due later is still listed
func Run(set *manifest.Set, o Options) (*Simulation, error) {
	var err error
	// The expansion of Jobs depends on whether they become gangs.
	if _, set.JobGroups, err = Gates(o.Gates, set); err != nil {
		return nil, err
	}

	set.Expand(int64(o.Seed))
	w, err := openWorld(set, o, o.For > 0)
	if err != nil {
		return nil, err
	}

	if o.Scenario != nil {
		if err := w.operations.planSteps(o.Scenario); err != nil {
			return nil, err
		}
	}

	w.scheduler.trySettled()
	if o.For > 0 {
		// A scenario may make healthy nodes fail, so node health must watch from the beginning.
		if w.BeginHealth(); o.Scenario != nil && w.health.core == nil {
			w.health.startHealth()
		}
		w.Advance(o.For)
	}

	// Evictions due after the end have not happened, but belong to the result anyway.
	w.report.said.Evictions = append(w.report.said.Evictions, w.evictions.toCome()...)
	slices.SortStableFunc(w.report.said.Evictions, Eviction.compare)
	if err := w.allowed.ended; err != nil {
		return nil, err
	}

	// Without any decision, the result reports the number of bound pods, so that it is not empty.
	if len(w.report.said.Pods) == 0 {
		w.report.said.Bound = w.pods.homed
	}
	if o.Scenario != nil {
		w.report.said.Timeline, w.report.said.Samples, w.report.said.For = w.report.timeline, w.report.samples, Seconds(o.For)
	}
	return w.report.said, w.report.failed
}

// Open creates a lasting world from a set: it supports operations, and time can pass. Nothing is
// scheduled yet. The world takes ownership of the set. To include the pods of workloads, callers
// must expand the set first.
func Open(set *manifest.Set, o Options) (*World, error) { return openWorld(set, o, true) }

// Twin returns a new world in this world's initial state, without later operations. A forecast
// compares the outcomes with and without a change. The two worlds are independent: each has
// separate plugins and therefore a separate clock. A twin costs as much as opening the world did.
func (w *World) Twin() (*World, error) {
	set, options := copyLists(&w.origin), w.options
	options.Profiles = make([]*plugins.Profile, len(w.options.Profiles))
	for i, p := range w.options.Profiles {
		var err error
		if options.Profiles[i], err = p.Fresh(); err != nil {
			return nil, err
		}
	}
	return openWorld(&set, options, true)
}

// BeginHealth starts node health, unless all nodes are healthy and it cannot have any effect.
func (w *World) BeginHealth() {
	if w.nodes.hasSick() {
		w.health.reportReady("")
		w.health.startHealth()
	}
}

// Uneventful reports whether the world is at rest, without outstanding evictions, calls on the
// agenda or pods waiting for their next attempt. A forecast of "nothing changes" then needs no
// simulation.
func (w *World) Uneventful() bool {
	_, upcoming := w.course.nextEvent()
	return !upcoming
}

// copyLists returns the set with copies of the lists changed by operations. The objects are shared,
// because they are never changed in place.
func copyLists(set *manifest.Set) manifest.Set {
	s := *set
	s.Namespaces = slices.Clone(s.Namespaces)
	s.PriorityClasses, s.RuntimeClasses = slices.Clone(s.PriorityClasses), slices.Clone(s.RuntimeClasses)
	return s
}

// openWorld creates a world and admits the set's pods. lasting is as in newWorld. With o.Discard,
// it consumes the set's pods, and the world must not have a twin.
func openWorld(set *manifest.Set, o Options, lasting bool) (*World, error) {
	w, err := newWorld(set, o, lasting)
	if err != nil {
		return nil, err
	}
	// Copy before pods are admitted and operations append to the lists.
	if lasting {
		w.origin = copyLists(set)
	}
	if err := w.pods.admitAll(set, o.Discard, &w.allowed); err != nil {
		return nil, err
	}
	// The allowance limits the pods and nodes added from here on.
	w.allowed.countExisting()
	// Budgets count pods, so add the pods first; the scheduler needs the budgets for preemption.
	w.budgets.countBudgets()
	if !o.Unseen {
		w.scheduler.showCreated()
	}
	return w, nil
}

// Allowance bounds the cost of a world; the zero value is unlimited. Servers set it, because a
// one-line request can create a hundred thousand pods.
type Allowance struct {
	// Stop, if set, is called between decisions. Once it returns an error, no further decision is
	// made and the current operation fails with that error. It is usually the Err method of a
	// context.
	Stop func() error
	// Pods and Nodes limit the total numbers of pods and nodes that operations may add; 0 means
	// unlimited.
	Pods, Nodes int
}

// allowed tracks the used part of an Allowance. Once ended is set, it is never cleared: the world
// is incomplete and must not serve requests.
type allowed struct {
	Allowance
	pods, nodes int   // maximum numbers; 0 means unlimited
	ended       error // reason no further decisions are made
	there       func() (pods, nodes int)
}

// countExisting computes the maximum numbers from the existing pods and nodes and the allowance.
func (a *allowed) countExisting() {
	pods, nodes := a.there()
	if a.Pods > 0 {
		a.pods = pods + a.Pods
	}
	if a.Nodes > 0 {
		a.nodes = nodes + a.Nodes
	}
}

// Err returns the reason the world has stopped, or nil.
func (w *World) Err() error { return w.allowed.ended }

// mustStop reports whether to stop. Every loop with a length that depends on an operation or on the
// cluster calls it at least once per decision.
func (a *allowed) mustStop() bool {
	pods, nodes := a.there()
	switch {
	case a.ended != nil:
	case a.pods > 0 && pods > a.pods:
		a.ended = fmt.Errorf("more than %d pods would be added: ask for fewer", a.Pods)
	case a.nodes > 0 && nodes > a.nodes:
		a.ended = fmt.Errorf("more than %d nodes would be added: ask for fewer", a.Nodes)
	case a.Stop != nil:
		a.ended = a.Stop()
	}
	return a.ended != nil
}
