// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"maps"
	"reflect"
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

// session is one attempt to schedule a pod, as seen by its plugins. Decisions evaluate the same
// node several times: to decide, to explain, to check whether preemption helps. Plugins are called
// as in kube-scheduler: PreFilter once and then, for hypothetical changes, AddPod and RemovePod
// on copies of the state.
//
// An example: a node has the pods a and b, and preemption checks whether the pod fits without b.
// The filter is called for the node with only a. The session detects the missing b, derives a view
// of the node (state copied, RemovePod called for b), and calls the plugin's Filter with it. If b
// is put back, the node has the same pods as the snapshot again, and the first verdict applies.
type session struct {
	f       *framework
	ctx     context.Context    // context of the scheduling cycle and, after its end, of the following steps
	end     context.CancelFunc // ends the scheduling cycle; nil outside of one
	pod     *v1.Pod
	waiting *cluster.Pod // the same pod in the form for decisions

	c        *cluster.Cluster // nil until the snapshot is taken
	snapshot *snapshot        // taken once per attempt, even if pods are assumed meanwhile
	position int              // position of the snapshot in the cluster's log

	state    *State
	narrowed map[string]plugins.Judge // PreFilter's result by plugin, without verdicts on nodes
	verdicts map[string][]verdict     // on the unchanged cluster, by plugin and index of the node

	mu       sync.Mutex
	supposed map[int32]*view // the last view of each node with hypothetical changes, by index

	answers *extenderAnswers // responses, including those inherited from an earlier decision
	aside   bool             // send requests to extenders from another goroutine; see askExtender

	assumed *v1.Pod // the pod with its node, from Reserve on
	prebind *preBinding
	ended   atomic.Bool
}

// verdict is a filter's verdict on one node. known distinguishes a node that passed from a node
// without a verdict.
type verdict struct {
	known     bool
	rejection *plugins.Rejection
}

// view is a node with its state, either unchanged or with pods hypothetically added and removed.
// Neither state nor info changes after the view was made.
type view struct {
	state *State
	info  *nodeInfo
	err   error // from AddPod or RemovePod

	verdicts map[string]*plugins.Rejection // by plugin; nil for the unchanged node
}

// newSession returns a session without a snapshot. Its context is derived from ctx, with the pod in
// its logger. The sets of plugins to skip are created here, since clones of the state share them.
func newSession(f *framework, ctx context.Context, pod *v1.Pod, waiting *cluster.Pod) *session {
	state := NewState()
	state.skipFilter, state.skipScore = sets.New[string](), sets.New[string]()
	return &session{
		f: f, ctx: klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(pod))),
		pod: pod, waiting: waiting, state: state, narrowed: map[string]plugins.Judge{},
		verdicts: map[string][]verdict{}, supposed: map[int32]*view{},
		answers: &extenderAnswers{byExtender: map[*extended]*extenderAnswer{}},
	}
}

// beginCycle gives the scheduling cycle a context that ends with it, and adds the data in which
// plugins leave pods to be activated afterwards. Upstream cancels the cycle's context as well, so
// that goroutines started by a plugin in Filter do not outlive it.
func (y *session) beginCycle() {
	after := y.ctx
	cycle, cancel := context.WithCancel(after)
	y.ctx, y.end = cycle, func() { cancel(); y.ctx, y.end = after, nil }
	if made := y.f.set.options.PodsToActivate; made != nil {
		y.state.Write(podsToActivate, made())
	}
}

// endCycle ends the scheduling cycle. It does nothing if the cycle has ended or never began.
func (y *session) endCycle() {
	if y.end != nil {
		y.end()
	}
}

// takeSnapshot takes the cycle's snapshot, unless it has one. Only the owner of the cluster may
// call it.
func (y *session) takeSnapshot(c *cluster.Cluster) {
	if y.c == nil {
		y.c, y.position, y.snapshot = c, c.Log.Len(), y.f.set.store.takeSnapshot(c)
	}
}

// isUnchanged reports whether the node matches the snapshot. It returns false after hypothetical
// additions and removals of pods, which either extend the cluster's log or are made on a copy of
// the node.
func (y *session) isUnchanged(n *cluster.Node) bool {
	return y.c.Nodes[n.Index] == n && y.c.Log.Len() == y.position
}

// viewOf returns the view of a node with its current pods. It may be called for different nodes
// concurrently, but never for one node by two goroutines. The last view of a node is kept. The next
// view is derived from it, and plugins are called only for the pods that differ.
func (y *session) viewOf(n *cluster.Node) *view {
	asItIs := &view{state: y.state, info: y.snapshot.infos[n.Index]}
	if y.isUnchanged(n) || samePods(asItIs.info, n) {
		return asItIs
	}
	y.mu.Lock()
	from := y.supposed[n.Index]
	y.mu.Unlock()
	// A view with a failed AddPod or RemovePod is not a valid base.
	if from == nil || from.err != nil {
		from = asItIs
	}
	next := y.deriveView(from, n)
	y.mu.Lock()
	y.supposed[n.Index] = next
	y.mu.Unlock()
	return next
}

// deriveView derives the view of a node from an earlier one, by calling the plugins for the
// differences.
func (y *session) deriveView(from *view, n *cluster.Node) *view {
	gone, come := diffPods(from.info, n)
	if len(gone)+len(come) == 0 {
		return from
	}
	next := &view{state: from.state.clone(), info: from.info.clone(), verdicts: map[string]*plugins.Rejection{}}
	next.err = y.changePods(next.state, next.info, gone, come)
	return next
}

// changePods removes pods from a node and adds other pods to it, and calls the PreFilter plugins
// for each. The order is upstream's: a NodeInfo is changed before the plugins are called.
func (y *session) changePods(state *State, info *nodeInfo, gone []fwk.PodInfo, come []*cluster.Pod) error {
	for _, p := range gone {
		if err := info.RemovePod(klog.FromContext(y.ctx), p.GetPod()); err != nil {
			return err
		}
		if status := y.f.movePod(y.ctx, state, y.pod, p, info, false); !status.IsSuccess() {
			return status.AsError()
		}
	}
	for _, p := range come {
		guest := y.podOf(p, info.node.Name)
		info.AddPodInfo(guest)
		if status := y.f.movePod(y.ctx, state, y.pod, guest, info, true); !status.IsSuccess() {
			return status.AsError()
		}
	}
	return nil
}

// podOf returns the object of a pod added to a node: a pod of the snapshot, or a pod nominated to
// the node. Like upstream, a nominated pod has an empty node name in its spec.
func (y *session) podOf(p *cluster.Pod, node string) fwk.PodInfo {
	for _, there := range y.snapshot.infos[y.snapshot.index[node]].pods {
		if there.GetPod().UID == p.UID() {
			return there
		}
	}
	return y.f.set.store.waitingInfo(p)
}

// samePods reports whether a NodeInfo has the pods of the node. If so, it is preferred to a copy
// with pods removed and added again: on that copy, host ports shared by two pods could count as
// free (see countPorts).
func samePods(info *nodeInfo, n *cluster.Node) bool {
	if len(info.pods) != len(n.Pods) {
		return false
	}
	gone, come := diffPods(info, n)
	return len(gone)+len(come) == 0
}

// diffPods compares the pods of a NodeInfo with the pods of the node, by UID. It returns the
// removed pods and the added pods.
func diffPods(info *nodeInfo, n *cluster.Node) (gone []fwk.PodInfo, come []*cluster.Pod) {
	there := make(map[types.UID]bool, len(n.Pods))
	for _, p := range n.Pods {
		there[p.UID()] = true
	}
	for _, p := range info.pods {
		if !there[p.GetPod().UID] {
			gone = append(gone, p)
		}
		delete(there, p.GetPod().UID)
	}
	for _, p := range n.Pods {
		if there[p.UID()] {
			come = append(come, p)
		}
	}
	return slices.Clip(gone), come
}

// onNode returns the pod with its chosen node, from Reserve on: a copy, since y.pod is shared. All
// calls for one node get the same copy.
func (y *session) onNode(node string) *v1.Pod {
	if y.assumed == nil || y.assumed.Spec.NodeName != node {
		y.assumed = y.pod.DeepCopy()
		y.assumed.Spec.NodeName = node
	}
	return y.assumed
}

// changeCluster changes the cluster during the cycle, which keeps using its snapshot. If the
// cluster had no hypothetical changes, the cycle still regards it as unchanged: a nomination moves
// no pod.
func (y *session) changeCluster(change func(c *cluster.Cluster)) {
	current := y.c.Log.Len() == y.position
	change(y.c)
	if current {
		y.position = y.c.Log.Len()
	}
}

// podsToActivate is the key under which plugins leave pods for activation. They are activated after
// the current pod's scheduling cycle, and again after its binding.
const podsToActivate fwk.StateKey = "kubernetes.io/pods-to-activate"

// ActivatesBy reports whether data is of kube-scheduler's type PodsToActivate, or of the same
// shape: a pointer to a struct with a lock and a map of pods. The type is in k8s.io/kubernetes
// itself, which Berth does not import.
func ActivatesBy(data fwk.StateData) bool {
	_, locks := data.(sync.Locker)
	return locks && podsIn(data).IsValid()
}

// podsIn returns the field Map of the struct pointed to by data, and the zero Value if data has
// another shape. Reflection replaces kube-scheduler's type: a plugin is compiled against
// k8s.io/kubernetes and asserts its own type, so Berth must accept any value.
func podsIn(data fwk.StateData) (pods reflect.Value) {
	pointer := reflect.ValueOf(data)
	if pointer.Kind() != reflect.Pointer || pointer.IsNil() || pointer.Elem().Kind() != reflect.Struct {
		return pods
	}
	if pods = pointer.Elem().FieldByName("Map"); pods.IsValid() && pods.Type() != reflect.TypeFor[map[string]*v1.Pod]() {
		return reflect.Value{}
	}
	return pods
}

// activatePods activates the pods left by plugins in the cycle's state, and clears the map, so that
// a second call in the same attempt activates only the pods added since. Like upstream, Berth calls
// it after a successful scheduling cycle and after the binding; the pods left in a failed cycle are
// dropped with its state.
func (y *session) activatePods() {
	data, err := y.state.Read(podsToActivate)
	if err != nil || !ActivatesBy(data) {
		return
	}
	// A plugin may still add pods from a goroutine it started; upstream's type has the lock for
	// that.
	lock := data.(sync.Locker)
	lock.Lock()
	pods := podsIn(data)
	added := maps.Clone(pods.Interface().(map[string]*v1.Pod))
	pods.Clear()
	lock.Unlock()
	y.f.set.activatePods(added)
}
