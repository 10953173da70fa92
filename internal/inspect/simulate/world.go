package simulate

import (
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// World is a cluster in virtual time, with the outcome so far. It joins parts, each of which
// changes its own state only and knows no more of the others than newWorld gives it; none knows the
// World, whose methods are what other packages may ask of it. It is not safe for concurrent use.
type World struct {
	options Options
	origin  manifest.Set // as it was at the beginning, for a twin

	clock   clock
	report  report
	allowed allowed

	// The API server's objects.
	c         *cluster.Cluster // as decisions see them
	pods      pods
	nodes     nodes
	workloads workloads
	claims    claims
	budgets   budgets
	bounds    *bounds

	// What reacts to them.
	scheduler   scheduler
	health      health
	evictions   evictions
	kubelets    kubelets
	controllers controllers

	// What moves them.
	course     course
	operations operations
	shortfalls shortfalls
}

func newWorld(set *manifest.Set, o Options, lasting bool) (*World, error) {
	if o.Profiles == nil {
		o.Profiles = []*plugins.Profile{plugins.Default()}
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
			failures: map[rules.Owner]*failures{}, failed: map[rules.Owner]bool{},
		},
	}

	for _, object := range set.Controllers() {
		w.workloads.Put(object)
	}
	if !o.Now.IsZero() {
		w.clock.start = o.Now
	}
	w.bounds.now = w.clock.start
	w.allowed = allowed{Allowance: o.Allowance, there: func() (pods, nodes int) { return len(w.pods.named), len(w.nodes.named) }}
	said := &Simulation{APIVersion: APIVersion, Kind: Kind, Pods: []Pod{}, Evictions: []Eviction{}}
	w.report = report{clock: &w.clock, said: said, timed: lasting}
	w.evictions = evictions{clock: &w.clock, held: map[string][]eviction.Held{}, last: -1}

	w.budgets = budgets{scheduler: &w.scheduler, workloads: &w.workloads, unready: map[*cluster.PodClass]int{}}
	w.claims = claims{scheduler: &w.scheduler}
	w.claims.Templates = map[cluster.Name]*resourcev1.ResourceClaimTemplate{}
	w.pods = pods{
		clock: &w.clock, report: &w.report, scheduler: &w.scheduler, budgets: &w.budgets, bounds: w.bounds,
		claims: &w.claims, evictions: &w.evictions,
		admission: o.Admission, catalog: admission.NewCatalog(set.Namespaces, set.PriorityClasses, set.RuntimeClasses),
		lasting: lasting, named: map[Name]*pod{}, placed: map[types.UID]*pod{}, ends: w.controllers.finishTermination,
		joined: w.kubelets.podJoined, left: w.kubelets.podLeft,
	}

	w.nodes = nodes{
		clock: &w.clock, report: &w.report, allowed: &w.allowed, scheduler: &w.scheduler, pods: &w.pods, evictions: &w.evictions,
		named: map[string]*machine{}, joined: w.controllers.startDaemons, changed: w.controllers.updateDaemons, seen: w.health.showNode,
	}

	w.health = health{clock: &w.clock, report: &w.report, nodes: &w.nodes, pods: &w.pods, options: o.Health}
	w.controllers = controllers{
		clock: &w.clock, report: &w.report, allowed: &w.allowed, scheduler: &w.scheduler, budgets: &w.budgets, claims: &w.claims,
		pods: &w.pods, nodes: &w.nodes, workloads: &w.workloads,
		stuck: map[string][]*pod{}, ending: map[string][]*pod{}, gaps: map[string][]*v1.Pod{},
	}

	w.kubelets = kubelets{
		clock: &w.clock, report: &w.report, nodes: &w.nodes, pods: &w.pods, begin: w.health.ensureStarted, depart: w.controllers.departPod,
		measured: map[string]*measured{}, uses: map[Name]v1.ResourceList{},
	}

	w.scheduler = scheduler{
		clock: &w.clock, report: &w.report, allowed: &w.allowed, explains: o.Explain, gates: gates, lasting: lasting,
		landed: w.pods.podLanded, preempt: w.controllers.preemptPod, remove: w.pods.removePod, allow: w.pods.createAllowed,
	}

	if o.Progress != nil {
		w.scheduler.progress = func(decided int) { o.Progress(decided, w.pods.entered) }
	}
	if asked := lasting && o.For == 0; asked {
		w.scheduler.behind = queue.MaxBackoff
	}

	if err := w.scheduler.startCore(o.Seed, o.Profiles); err != nil {
		return nil, err
	}
	w.course = course{
		clock: &w.clock, report: &w.report, nodes: &w.nodes, scheduler: &w.scheduler, health: &w.health, evictions: &w.evictions,
		controllers: &w.controllers,
	}
	w.operations = operations{
		clock: &w.clock, report: &w.report, allowed: &w.allowed, pods: &w.pods, nodes: &w.nodes, workloads: &w.workloads, claims: &w.claims,
		budgets: &w.budgets, bounds: w.bounds, scheduler: &w.scheduler, health: &w.health, kubelets: &w.kubelets,
		controllers: &w.controllers,
		options:     &w.options, gangs: gangs,
	}
	w.shortfalls = shortfalls{controllers: &w.controllers, pods: &w.pods, bounds: w.bounds}

	w.c = w.scheduler.c
	w.claims.Cluster, w.claims.Show, w.claims.ShowGone = w.c, w.scheduler.showObject, w.scheduler.showGone
	w.scheduler.showSet(set, w.pods.catalog)
	w.claims.identifyClaims()
	w.claims.addTemplates(set.ResourceClaimTemplates)
	for _, n := range set.Nodes {
		w.nodes.addNode(n)
	}

	w.nodes.findDead(set.Leases, clocks, o.Health.MonitorGracePeriod)
	return w, nil
}
