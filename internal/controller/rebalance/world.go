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
)

// world is the cluster after the moves so far. Every change of it can be undone: whoever tries a
// move takes it back in the order opposite to that in which it was made, and finds each count as it
// was.
//
// It owns which pod is where. What follows from that for one question has a type of its own:
// closures (which nodes take no new pods), protections (which pods must stay), prices (what a move
// has to bring), surges (whether a replica can come first).
//
// A proof and a move use the same few changes (removePod, placePod, closeNode, placeWaiting), each
// of which returns its own undo. What is tried is taken back with them, so that no trial has to
// copy the cluster.
type world struct {
	*objects
	*claiming
	// c is the cluster as the engine sees it. placed and c agree on where each pod is, but for a
	// pod that is off its node while its successor is decided (see withoutPod).
	c       *cluster.Cluster
	now     time.Time
	options Options
	// schedulers are by scheduler name. A pod whose name is not in it cannot be moved: nothing is
	// known of where its successor lands.
	schedulers map[string]*scheduler

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

// beginWorld loads a state without its pods. It is enough to carry out a plan; without strategies
// there are no gauges.
func beginWorld(state *State, options Options) *world {
	w := &world{
		c: cluster.New(), now: state.AsOf, options: options, schedulers: map[string]*scheduler{},
		placed: map[types.UID]*pod{}, siblings: map[rules.Owner]int{},
	}
	w.closures = closures{w: w, closed: map[int32]bool{}}
	w.protections = protections{w: w, covering: map[int32][]*budget{}}
	w.prices.w = w
	w.surges = surges{w: w, use: map[*v1.ResourceQuota]v1.ResourceList{}}
	w.objects = loadObjects(w.c, state)
	for _, n := range sortNodes(w.nodes) {
		w.closures.setNode(n)
	}
	for _, profile := range options.Profiles {
		w.schedulers[profile.SchedulerName] = newScheduler(w.c, profile)
	}
	w.claiming = newClaiming(w.c, w.templates, metav1.NewTime(w.now))
	return w
}

// openWorld loads a state and places the pending pods.
//
// The order matters. Strategies make the gauges, pods enter the cluster, and only when all groups
// of constraints are known are pods counted in them: a group that is found later is counted again
// from the start. Averages over nodes are resolved last, because they depend on all pods.
func openWorld(state *State, policy *Policy, options Options) *world {
	w := beginWorld(state, options)
	w.strategies = policy.bindStrategies(w)
	for _, object := range w.pods {
		w.enterPod(object)
	}
	// Budgets without a status are counted from the pods, which are all there by now.
	w.protections.budgets = readBudgets(w)
	all := w.sortedPods()
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

// sortNodes returns the nodes by name. Nodes are numbered in the order in which they are added, and
// map order would make plans differ from run to run.
func sortNodes(nodes map[string]*v1.Node) []*v1.Node {
	var list []*v1.Node
	for _, n := range nodes {
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b *v1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// enterPod adds a pod of the state: to its node, to those that have ended, or to those that are
// pending. Pods that nothing can be done about (on unknown nodes, or pending and being deleted) are
// in none of them.
func (w *world) enterPod(object *v1.Pod) {
	if object.UID == "" {
		object = object.DeepCopy()
		object.UID = uidOf(object)
	}

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
		if p.Pod = w.c.SetPod(object); p.Pod != nil && p.Node != nil {
			w.placed[p.UID] = p
			if !p.Terminating {
				w.siblings[rules.OwnerOf(object)]++
			}
		}
	case object.DeletionTimestamp == nil:
		p.Pod = w.c.Pending(object)
		p.late = true
		w.waiting = append(w.waiting, p)
		if p.Nominated != "" {
			w.c.Nominate(p.Pod, p.Nominated)
		}
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

// placeWaiting places the pending pods that fit, as the scheduler is about to do, and returns how
// to undo that.
//
// Those of the highest priority come first, then the oldest, much as in the scheduler's queue.
// Preemption is not tried: a pending pod that would preempt stays pending in a plan. A class that
// found no node is not tried again in the same call, unless the pod is nominated to one.
func (w *world) placeWaiting() (undo func()) {
	slices.SortStableFunc(w.waiting, func(a, b *pod) int {
		return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), a.Created.Compare(b.Created), byName(a, b))
	})
	before := slices.Clone(w.waiting)
	hopeless := map[*cluster.PodClass]bool{}
	var came []*pod
	var back []func()

	w.waiting = slices.DeleteFunc(w.waiting, func(p *pod) bool {
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
		back = append(back, w.placePod(p, d.Node))
		p.after = w.moved
		// It runs by the time the next move is made, and its budget counts it.
		w.protections.countRecovered(p, 1)
		came = append(came, p)
		return true
	})

	w.arrivals = append(w.arrivals, came...)
	return func() {
		w.arrivals = w.arrivals[:len(w.arrivals)-len(came)]
		for i, p := range slices.Backward(came) {
			nominated := p.Nominated
			w.protections.countRecovered(p, -1)
			back[i]()
			if nominated != "" {
				w.c.Nominate(p.Pod, nominated)
			}
		}
		w.waiting = before
	}
}

// placePod places a pod with what it claims and counts it, and returns how to undo that. The notes
// of claims are undone to where they stood; so undos must be called in reverse order.
func (w *world) placePod(p *pod, n *cluster.Node) (undo func()) {
	notes := len(w.notes)
	w.reserveFor(p, n, w.schedulerOf(p))
	w.addPod(p, n)
	return func() {
		w.dropPod(p)
		w.undoTo(notes)
	}
}

// removePod removes a pod, which gives back what it held, and returns how to undo that. The order
// is that of reality: the pod goes first, then its claims. Undo reverses it, so that what the pod
// held is there again before it is.
func (w *world) removePod(p *pod) (undo func()) {
	from, notes := p.Node, len(w.notes)
	w.dropPod(p)
	w.releaseOf(p)
	return func() {
		w.undoTo(notes)
		w.addPod(p, from)
	}
}

// addPod places a pod and counts it; dropPod undoes that.
func (w *world) addPod(p *pod, n *cluster.Node) {
	w.c.Place(p.Pod, n)
	w.placed[p.UID] = p
	w.countInGauges(p, 1)
}

// dropPod takes a pod off its node. The gauges are told first: they look at the node that it is on.
func (w *world) dropPod(p *pod) {
	w.countInGauges(p, -1)
	w.c.RemovePod(p.UID)
	p.SetNodeName("")
	delete(w.placed, p.UID)
}

// movePod makes a move: the victim leaves, its successor is placed, and so are pending pods that
// fit now. In a cluster these may come before the successor or after it; proveMove has shown that
// the move holds either way.
func (w *world) movePod(p *pod, to *cluster.Node) (next *pod, undo func()) {
	next, back := w.replacePod(p, to)
	w.moved++
	arrived := w.placeWaiting()
	return next, func() {
		arrived()
		w.moved--
		back()
	}
}

// replacePod has a pod leave, and places its successor. Pending pods are left alone.
func (w *world) replacePod(p *pod, to *cluster.Node) (next *pod, undo func()) {
	from := p.Node
	restore := w.removePod(p)
	next = w.successorFor(p)
	// A pod must not come back to any node that it has left in this plan: two moves that cancel out
	// would have disturbed it twice for nothing.
	next.been = append(slices.Clone(p.been), from.Name)
	notes := len(w.notes)
	w.createClaims(next.claims)
	remove := w.placePod(next, to)
	return next, func() {
		remove()
		w.undoTo(notes)
		restore()
	}
}
