// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// world is the cluster after the moves so far. Trials are undone to a mark of its World: derived
// state (gauges, budgets, waiting pods) is recorded there as well, so no trial copies the cluster.
//
// world owns the location of pods. Each consequence of their locations has its own type: closures
// (nodes closed to new pods), protections (pods that must stay), prices (the required gain of a
// move), surges (whether a replica can be started first).
//
// A proof and a move use the same few changes: removePod, placePod, closeNode, placeWaiting.
type world struct {
	*objects.World
	*claiming
	// c is the engine's view of the cluster. placed and c agree on the node of each pod, except for
	// a pod taken off its node while its successor is decided (see withoutPod).
	c       *cluster.Cluster
	now     time.Time
	options Options
	// schedulers is keyed by scheduler name. A pod with any other scheduler name cannot be moved:
	// its successor's node is unpredictable.
	schedulers map[string]*scheduler

	pods     []*v1.Pod           // pods of the state, by namespace and name
	placed   map[types.UID]*pod  // the pods on nodes
	ended    []*pod              // existing pods in phase Succeeded or Failed
	waiting  []*pod              // pending pods without a feasible node
	arrivals []*pod              // formerly pending, now placed pods
	moved    int                 // moves so far
	siblings map[rules.Owner]int // non-terminating pods on nodes at the beginning, by workload

	gauging
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
	objects  map[string]bool // filters that read API objects other than nodes and pods, such as volumes
}

// spreader returns a pod's spread constraints. It is the plugin PodTopologySpread, which adds the
// defaults of its arguments.
type spreader interface {
	Hard(c *cluster.Cluster, p *cluster.Pod) ([]plugins.SpreadConstraint, error)
	Soft(c *cluster.Cluster, p *cluster.Pod) (constraints []plugins.SpreadConstraint, everyKey bool, err error)
}

// nodePreference is a filter and scorer that looks only at a node's labels and name: the plugin
// NodeAffinity. Such a filter is recognized by its inputs.
type nodePreference interface {
	plugins.Filter
	plugins.Scorer
}

// pod is a placed, pending, or terminal pod. Successors are pods as well.
type pod struct {
	*cluster.Pod
	// object is the API object; package workload builds it for a successor. It is never changed.
	object *v1.Pod
	history
	surging
	orphan bool // the pod names a controller, but no controller recreates it

	counted *cluster.Node // node on which the gauges count the pod, even while a proof takes it off the node
	staying *bool         // cached result of staysOnNode; nil before the first call
	quality *int          // cached QoS rank; see qosRank
}

// beginWorld opens a world of a state, without gauges, strategies and entered pods.
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
// The order matters. Strategies make the gauges, pods are entered, and pods are counted in groups
// of constraints only when all groups are known: a group found later is recounted from the start.
// Averages over nodes are resolved last, because they depend on all pods.
func openWorld(state *State, policy *Policy, options Options) *world {
	w := beginWorld(state, options)
	w.strategies = policy.bindStrategies(w)
	var all []*pod // the placed pods, by name
	for _, object := range w.pods {
		w.enterPod(object)
		if p := w.placed[object.UID]; p != nil {
			all = append(all, p)
		}
	}
	// Budgets without a status are counted from the pods, all of them entered by now.
	w.protections.budgets = readBudgets(w)
	w.countAll(all)
	w.placeWaiting()
	for _, st := range w.strategies {
		st.nominateEnded()
		if g, averages := st.gauge.(*usage); averages {
			g.resolveDeviations()
		}
	}
	return w
}

// keptDecisions is the number of decisions for which an unused ranking is kept. The pods of a node
// may each belong to a different workload. With 500 workloads, each workload recurs only after some
// thousands of decisions.
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

// enterPod adds a pod of the state: to its node, to the terminal pods, or to the pending ones. It
// ignores pods on unknown nodes, and pending pods that are being deleted.
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
		// A pod may name a node missing from the state.
		if p.Pod = w.c.Pod(object.UID); p.Node != nil {
			w.placed[p.UID()] = p
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

// schedulerOf returns the scheduler placing a pod, or nil if its scheduler name matches no profile.
func (w *world) schedulerOf(p *pod) *scheduler { return w.schedulers[p.Spec().SchedulerName] }

// sortedPods returns the placed pods by name.
func (w *world) sortedPods() []*pod { return slices.SortedFunc(maps.Values(w.placed), byName) }

// byName orders pods by namespace and name, the last resort of every order: plans must not depend
// on the order of maps. The UID distinguishes a pod from a successor of the same name.
func byName(a, b *pod) int {
	return cmp.Or(cmp.Compare(a.Namespace(), b.Namespace()), cmp.Compare(a.Name(), b.Name()), cmp.Compare(a.UID(), b.UID()))
}

// placeWaiting places the pending pods that fit, anticipating the scheduler.
//
// The order is by descending priority, then oldest first, much like the scheduler's queue.
// Preemption is not tried: a pending pod that would preempt stays pending in a plan. If a class has
// no feasible node, its other pods are skipped in the same call, except for pods with a nominated
// node.
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
		// One pass is enough: placing a pod takes room. A later pod made feasible by required
		// affinity is placed by the next call.
		d := s.decider.Decide(p.Pod)
		if d.Node == nil {
			hopeless[p.Class] = p.Nominated == ""
			return false
		}
		w.placePod(p, d.Node)
		p.after = w.moved
		// The pod runs by the time of the next move, so its budget counts it.
		w.protections.countRecovered(p)
		w.arrivals = append(w.arrivals, p)
		return true
	})
}

// placePod places a pod together with its claims, and counts it.
func (w *world) placePod(p *pod, n *cluster.Node) {
	w.reserveFor(p, n, w.schedulerOf(p))
	w.Place(p.object, p.Pod, n)
	w.countPlaced(p)
	w.Note(func() { w.uncountPlaced(p) })
}

// removePod removes a pod and releases its claims. The order follows a real cluster: the pod first,
// then its claims.
func (w *world) removePod(p *pod) {
	w.uncountPlaced(p)
	w.Note(func() { w.countPlaced(p) })
	w.Remove(p.Pod)
	w.releaseOf(p)
}

// countPlaced counts a pod on a node. uncountPlaced undoes that before the pod leaves the node,
// because the gauges look at the node.
func (w *world) countPlaced(p *pod) {
	w.placed[p.UID()] = p
	w.countPod(p, 1)
}

func (w *world) uncountPlaced(p *pod) {
	w.countPod(p, -1)
	delete(w.placed, p.UID())
}

// movePod makes a move: the victim leaves, its successor is placed, and so are pending pods that
// now fit. In a cluster, these pending pods may be placed before or after the successor; proveMove
// has shown that the move holds either way.
func (w *world) movePod(p *pod, to *cluster.Node) (next *pod) {
	next = w.replacePod(p, to)
	w.moved++
	w.Note(func() { w.moved-- })
	w.placeWaiting()
	return next
}

// replacePod removes a pod and places its successor. It does not place pending pods.
func (w *world) replacePod(p *pod, to *cluster.Node) (next *pod) {
	from := p.Node
	w.removePod(p)
	next = w.successorFor(p)
	// A pod must not return to any node it has left in this plan: two moves that cancel out would
	// only disturb it twice.
	next.been = append(slices.Clone(p.been), from.Name)
	w.createClaims(next.claims)
	w.placePod(next, to)
	return next
}
