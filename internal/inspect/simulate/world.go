// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
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
		lasting: lasting, named: map[Name]*pod{}, ended: map[*pod]bool{}, placed: map[types.UID]*pod{},
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
	w.shortfalls = shortfalls{controllers: &w.controllers, pods: &w.pods, bounds: w.bounds}

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
