// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Additional access for package provision: the DaemonSet pods for a node that does not exist yet,
// and a check of a plan of new nodes by letting the scheduler place the pods.

// Nodes lists the nodes by name. Callers must not modify them.
func (w *World) Nodes() []*v1.Node {
	return answer.Mapped(w.nodes.names(), func(name string) *v1.Node { return w.nodes.named[name].object })
}

// DaemonSets lists the DaemonSets except those being deleted. Callers must not modify them.
func (w *World) DaemonSets() []*appsv1.DaemonSet {
	return slices.DeleteFunc(slices.Clone(w.workloads.daemonSets()), func(d *appsv1.DaemonSet) bool { return d.DeletionTimestamp != nil })
}

// DaemonRequests returns the requests of DaemonSet pods on a node, with their number as Pods. The
// node need not exist. The sum excludes pods that admission would refuse, because they are never
// created.
func (w *World) DaemonRequests(node *v1.Node) (sum cluster.Resources) {
	node = node.DeepCopy()
	node.Name = cmp.Or(node.Name, "new") // pods of DaemonSets are bound to a node name
	for _, set := range w.DaemonSets() {
		if !workload.RunsDaemon(set, node) {
			continue
		}
		pod := workload.DaemonPod(set, node.Name)
		pod.Name = set.Name + "-" + node.Name
		if pod, err := w.pods.admitPod(pod); err == nil {
			sum.Add(&w.c.Pending(pod).Class.Requests)
			sum.Pods++
		}
	}
	return sum
}

// Barren reports whether the world lacks nodes and has nothing to do but try pods. Callers skip the
// attempts, because each would only report the lack of nodes. A world with members of pod groups is
// not barren, because attempts for them show which groups are complete.
func (w *World) Barren() bool {
	if _, happens := w.course.nextChange(); happens || len(w.nodes.named) > 0 || w.health.isBusy() {
		return false
	}
	if at, due := w.scheduler.core.Due(); due && !at.IsZero() { // zero if a pod may be tried now
		return false
	}
	return !slices.ContainsFunc(w.pods.byName(), func(p *pod) bool { return groups.NameOf(p.object) != "" })
}

// LoseNodes removes nodes together with their pods. Pods of the same class leave one after another,
// so the scheduler finds quickly that their successors fit nowhere: only the first is decided.
func (w *World) LoseNodes(names []string) {
	var lost []*pod
	for _, name := range names {
		lost = append(lost, w.pods.podsOn(name)...)
	}
	slices.SortStableFunc(lost, func(a, b *pod) int { return cmp.Compare(a.Class.ID, b.Class.ID) })
	for _, p := range lost {
		if !p.gone { // a failed Job takes its other pods along
			w.controllers.departPod(p, ByNodeRemoval, p.NodeName)
		}
	}
	for _, name := range names {
		w.operations.removeNode(name)
	}
}

// Introduce shows the scheduler its unseen pods, see [Options.Unseen], on another goroutine.
// Callers must not access the world before they have called wait, which returns once all of these
// pods are shown.
func (w *World) Introduce() (wait func()) {
	var shown sync.WaitGroup
	shown.Go(w.scheduler.showCreated)
	return shown.Wait
}

// Manifests returns the cluster's manifests. They must not be changed.
func (w *World) Manifests() *manifest.Set { return w.workloads.set }

// GroupOf returns the pod's group as known to the scheduler, or nil.
func (w *World) GroupOf(p *cluster.Pod) *groups.Group { return w.scheduler.groupOf(p) }

// Turn is the planned node of a pod and its position in the order of attempts: lower numbers first.
// An empty Node means any node.
type Turn struct {
	Node   string
	Number int
}

// SettleAt tries pending pods until nothing changes. First it tries each pod on its planned node,
// in the order of the plan, and places it if the filters of its profile pass; then it tries the
// remaining pods on all nodes. It proves the plan: filters and state are the scheduler's, and only
// the choice among feasible nodes is replaced. It returns an error only if the world's allowance is
// used up (see Err), or if a profile cannot create new plugins.
func (w *World) SettleAt(planned map[types.UID]Turn) error {
	beyond := false
	usual, plain := make([]cycle.Profile, 0, len(w.scheduler.profiles)), []cycle.Profile(nil)
	for _, name := range slices.Sorted(maps.Keys(w.scheduler.profiles)) {
		profile := w.scheduler.profiles[name]
		unscored, err := profile.Fresh()
		if err != nil {
			return err
		}
		// The plan has chosen the node, so scoring, the most expensive part, would decide nothing.
		unscored.Scorers = nil
		unscored.At = maps.Clone(unscored.At)
		unscored.At[plugins.Reserve] = append(slices.Clone(unscored.At[plugins.Reserve]), asPlanned{}.Name())
		unscored.At[plugins.QueueSort] = []string{asPlanned{}.Name()}
		unscored.At[plugins.PostFilter] = nil // a pod without room on its planned node is retried later, and may preempt then
		usual = append(usual, cycle.Profile{Profile: profile})
		plain = append(plain, cycle.Profile{Profile: unscored,
			Extensions: []cycle.Extension{asPlanned{planned, map[*queue.Item]int{}, &beyond}}})
	}

	w.scheduler.preferred = make(map[types.UID]string, len(planned))
	for uid, turn := range planned {
		w.scheduler.preferred[uid] = turn.Node
	}
	w.scheduler.feedEvent(cycle.Configured{Profiles: plain})
	// Pods without a turn are last in this order, so the first of them ends the planned part.
	w.scheduler.tryUntil(func() bool { return beyond })
	w.scheduler.preferred = nil
	w.scheduler.feedEvent(cycle.Configured{Profiles: usual})
	// Now that the usual profiles are active again, try the remaining pods on all nodes, including
	// those without room on their planned node.
	w.scheduler.feedEvent(cycle.Activate{Pods: slices.Sorted(maps.Keys(w.scheduler.pending))})
	w.scheduler.trySettled()
	return w.Err()
}

// Toward makes the scheduler prefer nodes with fewer pods of a controller than intended, from now
// on; nil ends that. Pods are then tried in the order of their names, which is faster.
func (w *World) Toward(targets plugins.Targets) error {
	var profiles []cycle.Profile
	for _, name := range slices.Sorted(maps.Keys(w.scheduler.profiles)) {
		profile, err := w.scheduler.profiles[name].Fresh()
		if err != nil {
			return err
		}
		profile.Targets = targets
		toward := cycle.Profile{Profile: profile}
		if targets != nil {
			profile.At = maps.Clone(profile.At)
			profile.At[plugins.QueueSort] = []string{asPlanned{}.Name()}
			toward.Extensions = []cycle.Extension{asPlanned{numbers: map[*queue.Item]int{}, beyond: new(bool)}}
		}
		profiles = append(profiles, toward)
	}
	w.scheduler.feedEvent(cycle.Configured{Profiles: profiles})
	return nil
}

// asPlanned restricts pods to their planned nodes, and tries them in the order of their turns. It
// is an extension that sorts the queue, and rejects any other node at Reserve, after the choice of
// the node.
type asPlanned struct {
	turns map[types.UID]Turn
	// numbers caches the turns by queue item, for frequent comparisons.
	numbers map[*queue.Item]int
	// beyond is set once a pod without a turn is tried.
	beyond *bool
}

// Begin implements [cycle.Beginner].
func (k asPlanned) Begin(a *cycle.Attempt) {
	if _, planned := k.turns[a.Pod.UID]; !planned {
		*k.beyond = true
	}
}

// Name implements [cycle.Extension].
func (asPlanned) Name() string { return "Plan" }

// Less implements [cycle.Sorter]. Pods without a turn are last, by priority and name, so that pods
// of one controller follow each other.
func (k asPlanned) Less(a, b *queue.Item) bool {
	return cmp.Or(cmp.Compare(k.number(a), k.number(b)), cmp.Compare(ptr.Deref(b.Pod.Spec.Priority, 0), ptr.Deref(a.Pod.Spec.Priority, 0)),
		cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name)) < 0
}

// number returns the pod's turn; the largest int without one.
func (k asPlanned) number(of *queue.Item) int {
	number, known := k.numbers[of]
	if !known {
		number = math.MaxInt
		if turn, planned := k.turns[of.Pod.UID]; planned {
			number = turn.Number
		}
		k.numbers[of] = number
	}
	return number
}

// Reserve implements [cycle.Reserver].
func (k asPlanned) Reserve(a *cycle.Attempt) *plugins.Rejection {
	if node := k.turns[a.Pod.UID].Node; node != "" && node != a.Node {
		return &plugins.Rejection{Code: "PlannedElsewhere", Reasons: []string{"the plan has another node for it"}}
	}
	return nil
}

// Unreserve implements [cycle.Reserver].
func (asPlanned) Unreserve(*cycle.Attempt) {}
