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

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// What package provision asks of a world, beyond what others do: which pods DaemonSets would
// run on a node that does not exist yet, and whether a plan of new nodes holds when the
// scheduler places the pods itself.

// Nodes lists the nodes by name. They must not be changed.
func (w *World) Nodes() (list []*v1.Node) {
	for _, name := range w.nodes.names() {
		list = append(list, w.nodes.named[name].object)
	}
	return list
}

// DaemonSets lists the DaemonSets that there are, without those being deleted. They must not
// be changed.
func (w *World) DaemonSets() (list []*appsv1.DaemonSet) {
	for _, set := range w.workloads.daemonSets() {
		if set.DeletionTimestamp == nil {
			list = append(list, set)
		}
	}
	return list
}

// DaemonRequests returns what the pods of DaemonSets would request on a node, their number as
// Pods. The node need not exist. Pods that admission would refuse are left out: they never
// come.
func (w *World) DaemonRequests(node *v1.Node) (sum cluster.Resources) {
	node = node.DeepCopy()
	node.Name = cmp.Or(node.Name, "new") // the pods are for a node of a name
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

// Barren reports whether there is no node, and nothing happens by itself but that pods are
// tried: attempts now would say nothing of any pod but that no node is available. Callers
// skip them. Members of pod groups are an exception: attempts for these say which groups are
// complete.
func (w *World) Barren() bool {
	if _, happens := w.course.nextChange(); happens || len(w.nodes.named) > 0 || w.health.isBusy() {
		return false
	}
	if at, due := w.scheduler.core.Due(); due && !at.IsZero() { // zero: pods that may be tried now
		return false
	}
	for _, p := range w.pods.named {
		if groups.NameOf(p.object) != "" {
			return false
		}
	}
	return true
}

// Introduce shows the scheduler the pods that it does not know yet, see [Options.Unseen], on
// another goroutine. Until the returned function has been called, nothing else may look at
// the world; that function waits until the scheduler knows the pods.
func (w *World) Introduce() (wait func()) {
	var shown sync.WaitGroup
	shown.Go(w.scheduler.showCreated)
	return shown.Wait
}

// GroupOf returns the pod group that the scheduler knows a pod to be a member of, or nil.
func (w *World) GroupOf(p *cluster.Pod) *groups.Group { return w.scheduler.groupOf(p) }

// Turn is where a pod is to go, and when it is tried: those with a lower number first. An
// empty Node means any.
type Turn struct {
	Node   string
	Number int
}

// SettleAt tries pending pods until nothing changes: first each on the node that is planned
// for it, in the order of the plan, which it gets if the filters of its profile let it, then
// those that are left on any. It proves the plan: the decisions are the scheduler's own, with
// its filters and its state, and only the choice among feasible nodes is replaced. Fresh
// plugins must be possible for all profiles, which is the only error apart from that of an
// allowance.
func (w *World) SettleAt(planned map[types.UID]Turn) error {
	beyond := false
	usual, plain := make([]cycle.Profile, 0, len(w.scheduler.profiles)), []cycle.Profile(nil)
	for _, name := range slices.Sorted(maps.Keys(w.scheduler.profiles)) {
		profile := w.scheduler.profiles[name]
		unscored, err := profile.Fresh()
		if err != nil {
			return err
		}
		// The plan has chosen the node; scores would cost the most and decide nothing.
		unscored.Scorers = nil
		unscored.At = maps.Clone(unscored.At)
		unscored.At[plugins.Reserve] = append(slices.Clone(unscored.At[plugins.Reserve]), asPlanned{}.Name())
		unscored.At[plugins.QueueSort] = []string{asPlanned{}.Name()}
		unscored.At[plugins.PostFilter] = nil // what has no room as planned is tried again, and may preempt then
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
	// With the usual profiles again, those that had no room as planned are tried on all
	// nodes.
	w.scheduler.feedEvent(cycle.Activate{Pods: slices.Sorted(maps.Keys(w.scheduler.pending))})
	w.scheduler.trySettled()
	return w.Err()
}

// asPlanned keeps pods from nodes that are not planned for them, and has them tried in the
// order of the plan: what spreads before what is only counted where others spread. It is an
// extension that sorts the queue and rejects at Reserve, after the node was chosen.
type asPlanned struct {
	turns map[types.UID]Turn
	// numbers are the turns again, by the queue's items, which are compared often.
	numbers map[*queue.Item]int
	// beyond is set when the turn comes to pods that have none.
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

// Less implements [cycle.Sorter]. Pods without a turn come last.
func (k asPlanned) Less(a, b *queue.Item) bool { return k.number(a) < k.number(b) }

// number is the pod's turn; the largest int if it has none.
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
