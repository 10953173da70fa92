package outside

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// session is one attempt to schedule a pod, as its plugins see it. Decisions ask the same question
// several times: to decide, to explain, to see whether preemption helps. Plugins are called as
// kube-scheduler would call them: PreFilter once and then, for hypothetical changes, AddPod and
// RemovePod on copies of the state.
//
// An example: a node has the pods a and b, and preemption looks whether the pod fits without b. The
// filter is asked about the node with only a. The session finds that b is gone, derives a view of
// the node (state copied, RemovePod called for b), and calls the plugin's Filter with it. If b is
// put back, the node has again the pods of the snapshot, and the verdict from the beginning stands.
type session struct {
	f       *framework
	ctx     context.Context    // of the scheduling cycle, and when that is over of what follows it
	end     context.CancelFunc // ends the scheduling cycle; nil outside of one
	pod     *v1.Pod
	waiting *cluster.Pod // the same pod as decisions see it

	c        *cluster.Cluster // nil until the snapshot is taken
	snapshot *snapshot        // the same one in the whole attempt, whatever is assumed meanwhile
	position int              // of the cluster's log when the snapshot was made

	state    *State
	narrowed map[string]plugins.Judge // what PreFilter said, by plugin; not what a node func says
	verdicts map[string][]verdict     // of the cluster as it is, by plugin and index of the node

	mu       sync.Mutex
	supposed map[int32]*view // the last view of each node with hypothetical changes, by index

	answers *extenderAnswers // taken over from the attempt's first try, if there was one
	aside   bool             // extenders are not waited for

	assumed *v1.Pod // the pod with its node, from Reserve on
	prebind *preBinding
	ended   atomic.Bool
}

// verdict is a filter's verdict on one node. known tells a node that passed from one that was not
// asked about.
type verdict struct {
	known     bool
	rejection *plugins.Rejection
}

// view is a node with the state that belongs to it, as it is or with pods hypothetically added and
// removed. These two never change.
type view struct {
	state *State
	info  *nodeInfo
	err   error // from AddPod or RemovePod

	verdicts map[string]*plugins.Rejection // by plugin; nil for the node as it is
}

// newSession returns a session without a snapshot. Its context is the one given, with the pod in
// its logger. The sets of plugins to skip are made here, since clones of the state share them.
func newSession(f *framework, ctx context.Context, pod *v1.Pod, waiting *cluster.Pod) *session {
	state := NewState()
	state.skipFilter, state.skipScore = sets.New[string](), sets.New[string]()
	return &session{
		f: f, ctx: klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(pod))),
		pod: pod, waiting: waiting, state: state, narrowed: map[string]plugins.Judge{},
		verdicts: map[string][]verdict{}, supposed: map[int32]*view{},
		answers: &extenderAnswers{of: map[*extended]*extenderAnswer{}},
	}
}

// beginCycle gives the scheduling cycle a context, which ends with it, and a place for plugins to
// leave the pods that are to be activated afterwards. Upstream cancels the cycle's context too, so
// that goroutines that a plugin started in Filter do not outlive it.
func (y *session) beginCycle() {
	after := y.ctx
	cycle, cancel := context.WithCancel(after)
	y.ctx, y.end = cycle, func() { cancel(); y.ctx, y.end = after, nil }
	if made := y.f.set.options.PodsToActivate; made != nil {
		y.state.Write(podsToActivate, made())
	}
}

// endCycle ends the scheduling cycle. It does nothing if that has ended or never began.
func (y *session) endCycle() {
	if y.end != nil {
		y.end()
	}
}

// takeSnapshot takes the snapshot that the cycle uses, unless it has one. Only the owner of the
// cluster may call it.
func (y *session) takeSnapshot(c *cluster.Cluster) {
	if y.c == nil {
		y.c, y.position, y.snapshot = c, c.Log.Len(), y.f.set.store.takeSnapshot(c)
	}
}

// isUnchanged reports whether the node is as the snapshot shows it. It is not if pods were added or
// removed hypothetically, which either grows the cluster's log or is done on a copy of the node.
func (y *session) isUnchanged(n *cluster.Node) bool {
	return y.c.Nodes[n.Index] == n && y.c.Log.Len() == y.position
}

// viewOf returns the view of a node with the pods that it has now. It may be called for different
// nodes concurrently, and never for one node by two goroutines. The last view of a node is kept:
// the next one is derived from it, and plugins are told only of the pods that differ.
func (y *session) viewOf(n *cluster.Node) *view {
	asItIs := &view{state: y.state, info: y.snapshot.infos[n.Index]}
	if y.isUnchanged(n) || samePods(asItIs.info, n) {
		return asItIs
	}
	y.mu.Lock()
	from := y.supposed[n.Index]
	y.mu.Unlock()
	// A state in which AddPod or RemovePod failed is of no use to derive another from.
	if from == nil || from.err != nil {
		from = asItIs
	}
	next := y.deriveView(from, n)
	y.mu.Lock()
	y.supposed[n.Index] = next
	y.mu.Unlock()
	return next
}

// deriveView makes the view of a node from an earlier view of it, by telling the plugins of the
// difference.
func (y *session) deriveView(from *view, n *cluster.Node) *view {
	gone, come := diffPods(from.info, n)
	if len(gone)+len(come) == 0 {
		return from
	}
	next := &view{state: from.state.clone(), info: from.info.clone(), verdicts: map[string]*plugins.Rejection{}}
	next.err = y.changePods(next.state, next.info, gone, come)
	return next
}

// changePods removes pods from a node and adds others to it, and tells the PreFilter plugins of
// each. The order is upstream's: a NodeInfo is changed before the plugins are told.
func (y *session) changePods(state *State, info *nodeInfo, gone []fwk.PodInfo, come []*cluster.Pod) error {
	for _, p := range gone {
		if err := info.RemovePod(klog.FromContext(y.ctx), p.GetPod()); err != nil {
			return err
		}
		if status := y.f.removePod(y.ctx, state, y.pod, p, info); !status.IsSuccess() {
			return status.AsError()
		}
	}
	for _, p := range come {
		guest := y.podOf(p, info.node.Name)
		info.AddPodInfo(guest)
		if status := y.f.addPod(y.ctx, state, y.pod, guest, info); !status.IsSuccess() {
			return status.AsError()
		}
	}
	return nil
}

// podOf returns the object of a pod that comes to a node: one that was there in the snapshot, or
// one that is nominated to it. The latter has no node in its spec, as upstream.
func (y *session) podOf(p *cluster.Pod, node string) fwk.PodInfo {
	for _, there := range y.snapshot.infos[y.snapshot.index[node]].pods {
		if there.GetPod().UID == p.UID {
			return there
		}
	}
	return y.f.set.store.waitingInfo(p)
}

// samePods reports whether a NodeInfo has the pods of the node. If so, it is preferred to a copy to
// which pods were added and removed again: on that, ports that another pod has, too, would be free.
func samePods(info *nodeInfo, n *cluster.Node) bool {
	if len(info.pods) != len(n.Pods) {
		return false
	}
	gone, come := diffPods(info, n)
	return len(gone)+len(come) == 0
}

// diffPods compares the pods of a NodeInfo with those of the node: those that are gone, and those
// that are new. Pods are the same if they have the same UID.
func diffPods(info *nodeInfo, n *cluster.Node) (gone []fwk.PodInfo, come []*cluster.Pod) {
	there := make(map[types.UID]bool, len(n.Pods))
	for _, p := range n.Pods {
		there[p.UID] = true
	}
	for _, p := range info.pods {
		if !there[p.GetPod().UID] {
			gone = append(gone, p)
		}
		delete(there, p.GetPod().UID)
	}
	for _, p := range n.Pods {
		if there[p.UID] {
			come = append(come, p)
		}
	}
	return slices.Clip(gone), come
}

// onNode is the pod with the node that was chosen, from Reserve on: a copy, since y.pod is shared.
// All calls for one node get the same one.
func (y *session) onNode(node string) *v1.Pod {
	if y.assumed == nil || y.assumed.Spec.NodeName != node {
		y.assumed = y.pod.DeepCopy()
		y.assumed.Spec.NodeName = node
	}
	return y.assumed
}

// changeCluster changes the cluster in the course of the cycle, which keeps using its snapshot. If
// the cluster had no hypothetical changes, the cycle goes on to regard it as unchanged: a
// nomination moves no pod.
func (y *session) changeCluster(change func(c *cluster.Cluster)) {
	current := y.c.Log.Len() == y.position
	change(y.c)
	if current {
		y.position = y.c.Log.Len()
	}
}
