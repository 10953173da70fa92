// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// World is a cluster in virtual time, with the outcome so far. It joins components, and each
// changes only its own state. Components refer to the objects, and only [reactions] leads from the
// objects back to components. No component depends on the World itself, which is the interface for
// other packages. A World is not safe for concurrent use.
//
// An event propagates as follows. An operation, or the agenda, changes an object in pods, nodes or
// workloads. That component shows the change to the scheduler's core, which requeues the pods that
// the change may help. It also calls the reacting components and the budgets. Their actions take
// effect at the same virtual time. Pods are tried last, after everything else of that time (see
// [course]).
type World struct {
	// options are the options with which the world was opened; see [World.Twin].
	options Options
	origin  manifest.Set // initial state; see [World.Twin]

	clock   clock
	report  report
	allowed allowed

	// The API server's objects. c is the scheduler core's own cluster: objects enter it as events
	// of the core, so queries about pods here match the core's decisions. Only trials change c
	// directly, and they revert their changes immediately.
	c         *cluster.Cluster // the core's view
	pods      pods
	nodes     nodes
	workloads workloads
	claims    claims
	budgets   budgets
	bounds    *bounds

	// Components that react to changes of the objects.
	scheduler scheduler
	reactions

	// Components that change the objects.
	course     course
	operations operations
	// shortfalls only reads the objects.
	shortfalls shortfalls
}

// reactions holds the components that react to changes of objects. pods, nodes and the scheduler
// pass changes on to them only through this type; the components refer to pods, nodes and the
// scheduler directly.
type reactions struct {
	health      health
	evictions   evictions
	rebalances  rebalances
	kubelets    kubelets
	controllers controllers
}

// follow passes the current state of an object, or its deletion, to the controllers that watch all
// objects.
func (r *reactions) follow(object metav1.Object, gone bool) {
	r.evictions.follow(object, gone)
	r.rebalances.follow(object, gone)
}

// newWorld connects the components and fills them with all objects of the set except its pods,
// which pods.admitAll adds afterwards. lasting means that time may pass, so every pod must be kept.
//
// The fields of w are filled in one after the other. A pointer to a field may be handed out before
// the field is filled in, but nothing may be called through it until all fields are filled in.
func newWorld(set *manifest.Set, o Options, lasting bool) (*World, error) {
	if o.Profiles == nil {
		o.Profiles = []*plugins.Profile{plugins.Default()}
	}
	// Set the defaults first: findDead, called below, needs the grace period to distinguish dead
	// nodes from nodes with a slow clock.
	if o.Health.MonitorPeriod == 0 {
		o.Health = nodehealth.Defaults()
	}
	gates, gangs, err := Gates(o.Gates, set)
	if err != nil {
		return nil, err
	}

	clocks := clocksOf(set)
	w := &World{
		options: o, bounds: newBounds(set.ResourceQuotas, set.LimitRanges), clock: clock{start: clocks.startOf(set)},
		workloads: workloads{
			set: set, deleted: map[rules.Owner]bool{}, renewed: map[rules.Owner]bool{},
		},
	}

	if !o.Now.IsZero() {
		w.clock.start = o.Now
	}
	// Quotas use this time to detect overdue terminating pods.
	w.bounds.now = w.clock.start
	w.allowed = allowed{Allowance: o.Allowance, there: func() (pods, nodes int) { return len(w.pods.named), len(w.nodes.named) }}
	// Empty lists instead of nil: JSON consumers get [] and not null.
	result := &Simulation{APIVersion: APIVersion, Kind: Kind, Pods: []Pod{}, Evictions: []Eviction{}}
	w.report = report{clock: &w.clock, said: result, timed: lasting}
	w.evictions = newEvictions(&w.clock, &w.pods)

	w.budgets = budgets{scheduler: &w.scheduler, workloads: &w.workloads, unready: map[*cluster.PodClass]int{}}
	w.workloads.scheduler = &w.scheduler
	w.claims = claims{scheduler: &w.scheduler}
	w.claims.Template = w.claims.templateNamed
	w.pods = pods{
		clock: &w.clock, report: &w.report, scheduler: &w.scheduler, budgets: &w.budgets, bounds: w.bounds,
		claims: &w.claims, reactions: &w.reactions,
		admission: o.Admission, catalog: admission.NewCatalog(set.Namespaces, set.PriorityClasses, set.RuntimeClasses),
		lasting: lasting, twin: o.twin, named: map[Name]*pod{}, ended: map[*pod]bool{}, placed: map[types.UID]*pod{},
	}

	w.nodes = nodes{
		clock: &w.clock, report: &w.report, allowed: &w.allowed, scheduler: &w.scheduler, pods: &w.pods,
		reactions: &w.reactions, named: map[string]*machine{},
	}

	w.health = health{clock: &w.clock, report: &w.report, nodes: &w.nodes, pods: &w.pods, options: o.Health}
	w.controllers = controllers{
		clock: &w.clock, report: &w.report, allowed: &w.allowed, scheduler: &w.scheduler, budgets: &w.budgets, claims: &w.claims,
		pods: &w.pods, nodes: &w.nodes, workloads: &w.workloads,
		stuck: map[string][]*pod{}, ending: map[string][]*pod{}, gaps: map[string][]*v1.Pod{}, waiting: map[Name]*Departure{}, retries: retries{},
	}

	w.kubelets = kubelets{
		clock: &w.clock, report: &w.report, nodes: &w.nodes, pods: &w.pods, reactions: &w.reactions,
		measured: map[string]*measured{}, uses: map[Name]v1.ResourceList{},
	}

	w.scheduler = scheduler{
		clock: &w.clock, report: &w.report, allowed: &w.allowed, explains: o.Explain, gates: gates, lasting: lasting,
		reactions: &w.reactions,
	}

	if o.Progress != nil {
		w.scheduler.progress = func(decided int) { o.Progress(decided, w.pods.entered) }
	}
	// A world opened without a time span serves requests about a running cluster. The live
	// scheduler tried its pending pods long ago, so no back-off may delay them here.
	if asked := lasting && o.For == 0; asked {
		w.scheduler.behind = queue.MaxBackoff
	}

	if err := w.scheduler.startCore(o.Seed, o.Profiles); err != nil {
		return nil, err
	}
	w.course = course{controllers: &w.controllers, reactions: &w.reactions}
	w.rebalances = rebalances{controllers: &w.controllers, profiles: o.Profiles}
	w.operations = operations{
		controllers: &w.controllers, reactions: &w.reactions, bounds: w.bounds, options: &w.options, gangs: gangs,
	}
	w.shortfalls = shortfalls{controllers: &w.controllers, bounds: w.bounds}

	// The core exists from here on. Pods refer to the other objects, so add those first.
	w.c = w.scheduler.c
	w.claims.Cluster, w.claims.Show, w.claims.ShowGone = w.c, w.scheduler.showObject, w.scheduler.showGone
	// Budgets and the simulated controllers look up the owners of pods here, from the first pod on.
	for _, object := range set.Controllers() {
		w.scheduler.follow(object, false)
	}
	w.scheduler.showSet(set, w.pods.catalog)
	w.scheduler.findStalled(set.Whole)
	w.claims.identifyClaims()
	for _, n := range set.Nodes {
		w.nodes.addNode(n)
	}

	// Do this last, because it looks up the nodes by name.
	w.nodes.findDead(set.Leases, clocks, o.Health.MonitorGracePeriod)
	return w, nil
}

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

	twin bool // see Twin
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
	options.twin = true
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
	s.Pods = slices.Clone(s.Pods)
	return s
}

// openWorld creates a world and admits the set's pods. lasting is as in newWorld. With o.Discard,
// it consumes the set's pods, and the world must not have a twin.
func openWorld(set *manifest.Set, o Options, lasting bool) (*World, error) {
	w, err := newWorld(set, o, lasting)
	if err != nil {
		return nil, err
	}
	// Copy before pods are admitted and operations append to the lists. Admitted pods replace the
	// pods of the copy, so that twins share them.
	if lasting {
		w.origin = copyLists(set)
		if own := *set; !o.Discard {
			own.Pods, set = w.origin.Pods, &own
		}
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
