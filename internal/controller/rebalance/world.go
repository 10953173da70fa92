package rebalance

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
)

// world is the cluster after the moves so far. What is tried is undone to a mark of the World in
// it: what it keeps in step with that (gauges, budgets, the pods that wait) is noted there, too, so
// that no trial has to copy the cluster.
//
// It owns which pod is where. What follows from that for one question has a type of its own:
// closures (which nodes take no new pods), protections (which pods must stay), prices (what a move
// has to bring), surges (whether a replica can come first).
//
// A proof and a move use the same few changes: removePod, placePod, closeNode, placeWaiting.
type world struct {
	*objects.World
	*claiming
	// c is the cluster as the engine sees it. placed and c agree on where each pod is, but for a
	// pod that is off its node while its successor is decided (see withoutPod).
	c       *cluster.Cluster
	now     time.Time
	options Options
	// schedulers are by scheduler name. A pod whose name is not in it cannot be moved: nothing is
	// known of where its successor lands.
	schedulers map[string]*scheduler

	pods     []*v1.Pod           // those of the state, by namespace and name
	placed   map[types.UID]*pod  // the pods on nodes
	ended    []*pod              // in phase Succeeded or Failed, still there
	waiting  []*pod              // pending, and found no node
	arrivals []*pod              // were pending, and have been placed
	moved    int                 // moves so far
	siblings map[rules.Owner]int // pods of each workload that were on nodes at the beginning, and not terminating

	// gauges are what the policy counts, in the order in which they are compared; hard is the first
	// of them. Goals that heal hard constraints share that one. The list does not change once the
	// world is open.
	gauges     []gauge
	hard       *ledger
	strategies []*strategy

	closures    closures
	protections protections
	prices      prices
	surges      surges
}

// scheduler serves the pods of one profile. A profile may lack any plugin: spread and affinity are
// nil then, and constraints of that kind are not counted, because the scheduler does not enforce
// them either.
type scheduler struct {
	profile  *plugins.Profile
	decider  *decide.Decider
	spread   spreader
	affinity nodePreference
	objects  map[string]bool // filters that look at API objects besides nodes and pods, as those of volumes do
}

// spreader returns a pod's spread constraints. It is the plugin PodTopologySpread, which adds the
// defaults of its arguments.
type spreader interface {
	Hard(c *cluster.Cluster, p *cluster.Pod) ([]plugins.SpreadConstraint, error)
	Soft(c *cluster.Cluster, p *cluster.Pod) (constraints []plugins.SpreadConstraint, everyKey bool, err error)
}

// nodePreference is the filter and scorer that looks only at a node's labels and name. It is the
// plugin NodeAffinity; which filter it is, is found by what it reads.
type nodePreference interface {
	plugins.Filter
	plugins.Scorer
}

// pod is a pod: placed, pending, or terminal.
//
// Successors are pods, too. A chain of moves of the same workload pod is linked by victim (always
// the pod of the state) and next.
type pod struct {
	*cluster.Pod
	// object is the API object; that of a successor is made by package workload. It is never
	// changed.
	object *v1.Pod
	// victim is the pod of the state whose successor this is; the pod itself if it was not moved.
	victim *pod
	been   []string // nodes that the pods that it succeeds have left
	// staying is whether it belongs to its node, once that was asked; see staysOnNode.
	staying *bool
	quality *int // of service, once that was asked; see qosRank
	orphan  bool // nobody makes it again, although it has a controller
	// surge is how one more replica comes before it leaves; nil: none does, and noSurge says why.
	// later is set if that passes by itself, cramped if only room is missing.
	surge   *Surge
	noSurge string
	later   bool
	cramped bool
	// late is set if it was pending when the plan began, or is a successor. It is not moved.
	late    bool
	after   int             // for a pod that was pending: how many moves were made before it was placed
	counted *cluster.Node   // where the gauges count it, also while it is taken off that node for a proof
	next    *pod            // its successor, once it was needed
	claims  []metav1.Object // that controllers make for it, if it is a successor
}

// beginWorld opens a world of a state, without gauges and without the pods that strategies look at.
func beginWorld(state *State, options Options) *world {
	w := &world{
		World: state.World.Fork(), now: state.AsOf, options: options, schedulers: map[string]*scheduler{},
		placed: map[types.UID]*pod{}, siblings: map[rules.Owner]int{},
	}
	w.c, w.pods = w.Cluster(), slices.Collect(objects.All[*v1.Pod](w.World))
	w.closures = closures{w: w, closed: map[int32]bool{}}
	w.protections = protections{w: w, covering: map[int32][]*budget{}}
	w.prices.w = w
	w.surges = surges{w: w, use: map[*v1.ResourceQuota]v1.ResourceList{}}
	for _, n := range w.c.Nodes {
		w.closures.noteNode(n)
	}
	for _, profile := range options.Profiles {
		w.schedulers[profile.SchedulerName] = newScheduler(w.c, profile)
	}
	w.claiming = newClaiming(w.World, metav1.NewTime(w.now))
	return w
}

// openWorld loads a state and places the pending pods.
//
// The order matters. Strategies make the gauges, pods are known, and only when all groups of
// constraints are known are pods counted in them: a group that is found later is counted again
// from the start. Averages over nodes are resolved last, because they depend on all pods.
func openWorld(state *State, policy *Policy, options Options) *world {
	w := beginWorld(state, options)
	w.strategies = policy.bindStrategies(w)
	var all []*pod // the placed ones, by name
	for _, object := range w.pods {
		w.enterPod(object)
		if p := w.placed[object.UID]; p != nil {
			all = append(all, p)
		}
	}
	// Budgets without a status are counted from the pods, which are all there by now.
	w.protections.budgets = readBudgets(w)
	for _, p := range all { // groups are known before pods are counted in them
		for _, g := range w.gauges {
			if l, ok := g.(*ledger); ok {
				l.concernOf(p)
			}
		}
	}
	for _, p := range all {
		w.countInGauges(p, 1)
	}
	w.placeWaiting()
	for _, st := range w.strategies {
		st.nominateEnded()
		if g, averages := st.gauge.(*usage); averages {
			g.resolveDeviations()
		}
	}
	return w
}

// keptDecisions is for how many decisions a ranking is kept without use. A node's pods are of as
// many workloads, and those of 500 workloads come up again only after some thousands of decisions.
const keptDecisions = 1 << 14

// newScheduler returns a scheduler for a profile. Its decider breaks ties by a fixed seed, so that
// the same state gives the same plan.
func newScheduler(c *cluster.Cluster, profile *plugins.Profile) *scheduler {
	s := &scheduler{profile: profile, decider: decide.New(c, profile, 1), objects: map[string]bool{}}
	s.decider.KeepFor(keptDecisions)

	for _, filter := range profile.Filters {
		if spread, ok := filter.(spreader); ok {
			s.spread = spread
		}
		if both, ok := filter.(nodePreference); ok && filter.Reads()&^(plugins.Labels|plugins.Identity) == 0 {
			s.affinity = both
		}
		if filter.Reads()&plugins.Objects != 0 {
			s.objects[filter.Name()] = true
		}
	}
	return s
}

// enterPod adds a pod of the state: to its node, to those that have ended, or to those that are
// pending. Pods that nothing can be done about (on unknown nodes, or pending and being deleted) are
// in none of them.
func (w *world) enterPod(object *v1.Pod) {
	p := &pod{object: object}
	p.victim = p
	switch {
	case rules.IsTerminal(object):
		p.Pod = w.c.Pending(object)
		if object.DeletionTimestamp == nil {
			w.ended = append(w.ended, p)
		}
	case object.Spec.NodeName != "":
		// A pod may name a node that is not in the state.
		if p.Pod = w.c.Pod(object.UID); p.Node != nil {
			w.placed[p.UID] = p
			if !p.Terminating {
				w.siblings[rules.OwnerOf(object)]++
			}
		}
	case object.DeletionTimestamp == nil:
		p.Pod = cmp.Or(w.c.Nominated(object.UID), w.c.Pending(object))
		p.late = true
		w.waiting = append(w.waiting, p)
	}
}

// countInGauges tells the gauges that a pod was added or removed. Terminating pods count nowhere.
func (w *world) countInGauges(p *pod, by int64) {
	if p.Terminating {
		return
	}
	for _, g := range w.gauges {
		g.countPod(p, p.Node, by)
	}
	// Groups that are counted again later go by this, since p.Node changes during proofs.
	if p.counted = nil; by > 0 {
		p.counted = p.Node
	}
}

// schedulerOf returns the scheduler that places a pod, or nil if no profile has its scheduler name.
func (w *world) schedulerOf(p *pod) *scheduler { return w.schedulers[p.Spec().SchedulerName] }

// sortedPods returns the placed pods by name.
func (w *world) sortedPods() []*pod { return slices.SortedFunc(maps.Values(w.placed), byName) }

// byName orders pods by namespace and name, the last resort of every order: plans must not depend
// on the order of maps. The UID tells a pod from a successor with its name.
func byName(a, b *pod) int {
	return cmp.Or(cmp.Compare(a.Namespace(), b.Namespace()), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// placeWaiting places the pending pods that fit, as the scheduler is about to do.
//
// Those of the highest priority come first, then the oldest, much as in the scheduler's queue.
// Preemption is not tried: a pending pod that would preempt stays pending in a plan. A class that
// found no node is not tried again in the same call, unless the pod is nominated to one.
func (w *world) placeWaiting() {
	slices.SortStableFunc(w.waiting, func(a, b *pod) int {
		return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), a.Created.Compare(b.Created), byName(a, b))
	})
	waiting, arrived := w.waiting, len(w.arrivals)
	w.Note(func() { w.waiting, w.arrivals = waiting, w.arrivals[:arrived] })
	hopeless := map[*cluster.PodClass]bool{}

	w.waiting = slices.DeleteFunc(slices.Clone(waiting), func(p *pod) bool {
		s := w.schedulerOf(p)
		if s == nil || hopeless[p.Class] || len(p.Spec().SchedulingGates) > 0 {
			return false
		}
		// One pass is enough: placing a pod takes room. Whom a later pod helps, by required
		// affinity, is placed by the next call.
		d := s.decider.Decide(p.Pod)
		if d.Node == nil {
			hopeless[p.Class] = p.Nominated == ""
			return false
		}
		w.placePod(p, d.Node)
		p.after = w.moved
		// It runs by the time the next move is made, and its budget counts it.
		w.protections.countRecovered(p)
		w.arrivals = append(w.arrivals, p)
		return true
	})
}

// placePod places a pod with what it claims and counts it.
func (w *world) placePod(p *pod, n *cluster.Node) {
	w.reserveFor(p, n, w.schedulerOf(p))
	w.Place(p.object, p.Pod, n)
	w.countPlaced(p)
	w.Note(func() { w.uncountPlaced(p) })
}

// removePod removes a pod, which gives back what it held. The order is that of reality: the pod
// goes first, then its claims.
func (w *world) removePod(p *pod) {
	w.uncountPlaced(p)
	w.Note(func() { w.countPlaced(p) })
	w.Remove(p.Pod)
	w.releaseOf(p)
}

// countPlaced counts a pod that is on a node. uncountPlaced undoes that, before the pod leaves the
// node: the gauges look at it.
func (w *world) countPlaced(p *pod) {
	w.placed[p.UID] = p
	w.countInGauges(p, 1)
}

func (w *world) uncountPlaced(p *pod) {
	w.countInGauges(p, -1)
	delete(w.placed, p.UID)
}

// movePod makes a move: the victim leaves, its successor is placed, and so are pending pods that
// fit now. In a cluster these may come before the successor or after it; proveMove has shown that
// the move holds either way.
func (w *world) movePod(p *pod, to *cluster.Node) (next *pod) {
	next = w.replacePod(p, to)
	w.moved++
	w.Note(func() { w.moved-- })
	w.placeWaiting()
	return next
}

// replacePod has a pod leave, and places its successor. Pending pods are left alone.
func (w *world) replacePod(p *pod, to *cluster.Node) (next *pod) {
	from := p.Node
	w.removePod(p)
	next = w.successorFor(p)
	// A pod must not come back to any node that it has left in this plan: two moves that cancel out
	// would have disturbed it twice for nothing.
	next.been = append(slices.Clone(p.been), from.Name)
	w.createClaims(next.claims)
	w.placePod(next, to)
	return next
}
