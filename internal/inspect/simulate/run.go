package simulate

import (
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Options say how to simulate. The zero value is the default profile and no time that passes.
// A world keeps them, and gives copies to its twins.
type Options struct {
	// Profiles serve pods by their scheduler name; none: the default profile.
	Profiles []*plugins.Profile
	// Gates are feature gates by name; see [Gates] for those that are not named.
	Gates map[string]bool
	// Admission configures the admission of new pods.
	Admission admission.Config
	// Seed breaks ties between nodes that are equally good, and generates names. The same
	// seed gives the same answer.
	Seed uint64
	// Explain adds every plugin's verdict on every node to each decision. That is plugins
	// times nodes for each pod: for questions about few pods.
	Explain bool
	// For is how much time passes after all pods have been tried: evictions come due, controllers
	// replace the evicted pods, and pending pods are retried whenever something changes. With 0,
	// each pod is tried once.
	For time.Duration
	// Discard releases the set's pods as they are admitted. This halves memory use, but the set
	// cannot be used afterwards.
	Discard bool
	// Unseen leaves the scheduler without the pods that wait until they are tried, or until the
	// world is told to introduce them. Nothing can be asked about their place in the queue before.
	Unseen bool
	// Now is when the world begins; by default the latest time in the manifests.
	Now time.Time
	// Scenario has the operations to carry out while time passes; nil means none.
	Scenario *Scenario
	// Read reads the manifests that a scenario or an operation deploys; nil means that it cannot
	// deploy any. A server must pass one that opens no files of its host.
	Read func(files []string, over *manifest.Set) (*manifest.Set, error)
	// Health are the settings of node health; the zero value: kube-controller-manager's defaults.
	Health nodehealth.Options
	// Allowance bounds what the world may cost.
	Allowance Allowance
	// Progress, if set, is called every progressEvery decisions with how many pods have been
	// decided and how many there are.
	Progress func(decided, pods int)
}

// Run simulates the set and returns what becomes of it. Workloads are expanded first, in the
// set itself. A pod that the API server would refuse is an error, as other faults of
// manifests are.
//
//	time   0                                          o.For
//	       try all pods - events, evictions, retries - end; what is due later is still listed
func Run(set *manifest.Set, o Options) (*Simulation, error) {
	var err error
	// Whether Jobs become gangs decides what they are expanded to.
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
		// A scenario may make nodes fail that are well now, so node health has to watch from
		// the beginning.
		if w.BeginHealth(); o.Scenario != nil && w.health.core == nil {
			w.health.startHealth()
		}
		w.Advance(o.For)
	}

	// Evictions that are due after the end have not happened, and are part of the answer all
	// the same.
	w.report.said.Evictions = append(w.report.said.Evictions, w.evictions.toCome()...)
	slices.SortStableFunc(w.report.said.Evictions, Eviction.compare)
	if err := w.allowed.ended; err != nil {
		return nil, err
	}

	// Without any decision, the answer says how many pods have a node, so that it is not
	// empty.
	if len(w.report.said.Pods) == 0 {
		w.report.said.Bound = w.pods.homed
	}
	if o.Scenario != nil {
		w.report.said.Timeline, w.report.said.Samples, w.report.said.For = w.report.timeline, w.report.samples, Seconds(o.For)
	}
	return w.report.said, w.report.failed
}

// Open makes a lasting world from a set: operations can be done in it, and time can pass.
// Nothing has been scheduled yet. The set belongs to the world afterwards; its workloads must
// be expanded if their pods are wanted.
func Open(set *manifest.Set, o Options) (*World, error) { return openWorld(set, o, true) }

// Twin returns a new world as this one was when it was opened, without what was applied to it
// since: a forecast compares what happens with and without a change. The two are independent:
// each has plugins, and so a clock, of its own. It costs as much as opening the world did.
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

// BeginHealth has node health act from now on, unless it cannot have any effect because all nodes
// are well.
func (w *World) BeginHealth() {
	if w.nodes.hasSick() {
		w.health.reportReady("")
		w.health.startHealth()
	}
}

// Uneventful reports whether nothing will happen by itself: no eviction is due, the agenda is
// empty, and no pod waits for its next attempt. A forecast of "nothing changes" then needs no
// simulation.
func (w *World) Uneventful() bool {
	_, upcoming := w.course.nextEvent()
	return !upcoming
}

// copyLists returns the set with copies of the lists that operations change. The objects in
// them are never changed in place, so they are shared.
func copyLists(set *manifest.Set) manifest.Set {
	s := *set
	s.Namespaces = slices.Clone(s.Namespaces)
	s.PriorityClasses, s.RuntimeClasses = slices.Clone(s.PriorityClasses), slices.Clone(s.RuntimeClasses)
	return s
}

// openWorld makes a world and admits the set's pods. lasting is as in newWorld. With
// o.Discard, the set's pods are gone afterwards, and the world must not have a twin.
func openWorld(set *manifest.Set, o Options, lasting bool) (*World, error) {
	w, err := newWorld(set, o, lasting)
	if err != nil {
		return nil, err
	}
	// Before pods are admitted and operations append to the lists.
	if lasting {
		w.origin = copyLists(set)
	}
	if err := w.pods.admitAll(set, o.Discard, &w.allowed); err != nil {
		return nil, err
	}
	// From here on the allowance counts what is added.
	w.allowed.countExisting()
	// Budgets count pods, so these have to be there; the scheduler needs the budgets to
	// preempt.
	w.budgets.countBudgets()
	if !o.Unseen {
		w.scheduler.showCreated()
	}
	return w, nil
}
