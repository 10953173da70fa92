// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file holds the methods of Handle that a plugin may call while the scheduler calls the
// plugin. They check whether a pod would fit on a node with other pods, score nodes, and manage
// nominated pods. Upstream works on copies. Berth's own filters read the cluster itself, so the
// cluster must temporarily contain those pods (package cluster's Supposing), on the goroutine
// owning it and without concurrent readers.

// errClosed is returned to a plugin calling back at the wrong time.
var errClosed = errors.New("the plugins of the profile can be asked from PreFilter, PostFilter, PreScore, Reserve and " +
	"Permit, while these run, and at no other time")

// askingBack marks the context of calls to plugins during another plugin's callback. A callback
// from such a call would deadlock, so askBack refuses it.
type askingBack struct{}

// askBack waits for the plugin's turn to call back, since several goroutines of a plugin may do so.
// It returns a nil session if a callback is not allowed now; otherwise done must be called.
func (f *framework) askBack(ctx context.Context) (y *session, done func()) {
	if ctx.Value(askingBack{}) != nil {
		return nil, nil
	}
	f.asking.Lock()
	if y = f.openSession(); y == nil {
		f.asking.Unlock()
		return nil, nil
	}
	return y, f.asking.Unlock
}

// foreignState returns the error for a CycleState not made by Berth, which lacks the list of moves.
func foreignState(state fwk.CycleState) *fwk.Status {
	return fwk.AsStatus(fmt.Errorf("the CycleState is a %T: not one that was handed to the plugin", state))
}

// RunFilterPlugins runs all filters of the profile on a node that has the pods in info. The pod may
// differ from the pod being decided.
//
// The hypothetical differences from the real cluster have two sources. On the node itself, they are
// the pods of info. On other nodes, they are the moves announced by the plugin
// (RunPreFilterExtensionAddPod and its counterpart), which matter to filters that read several
// nodes, such as PodTopologySpread. All changes are undone before it returns.
func (h *handle) RunFilterPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	own, ok := state.(*State)
	if !ok {
		return foreignState(state)
	}

	y, done := h.f.askBack(ctx)
	if y == nil {
		return fwk.AsStatus(errClosed)
	}

	defer done()
	n := y.c.Node(info.Node().Name)
	if n == nil {
		return fwk.AsStatus(fmt.Errorf("nodeinfo not found for node name %q", info.Node().Name))
	}

	waiting := y.waiting
	if pod.UID != waiting.UID() {
		waiting = y.c.Pending(pod)
	}

	s := &supposition{c: y.c, over: y.c.Supposing()}
	defer s.undoAll()
	s.holdPods(n, info)
	for _, m := range own.moves {
		if m.node != n.Name { // on this node, info already includes the move
			s.applyMove(m)
		}
	}

	return y.askFilters(context.WithValue(ctx, askingBack{}, true), own, pod, waiting, info, n)
}

// askFilters runs Berth's filters on the cluster with its hypothetical changes, and out-of-tree
// filters on info, in their order. It returns the first rejection, with the plugin's name; nil is
// success.
func (y *session) askFilters(ctx context.Context, state *State, pod *v1.Pod, waiting *cluster.Pod, info fwk.NodeInfo,
	n *cluster.Node) *fwk.Status {
	for _, filter := range y.f.profile.Filters {
		var status *fwk.Status
		if asked, ok := filter.(*outOfTree); ok {
			status = asked.askAbout(ctx, state, pod, info)
		} else {
			status = askOwn(y.c, filter, waiting, n)
		}
		if !status.IsSuccess() {
			return status.WithPlugin(filter.Name())
		}
	}
	return nil
}

// outOfTree is a name for filter where a loop variable has that name.
type outOfTree = filter

// askAbout calls the plugin's Filter with the state and node passed by the plugin calling back, and
// not with those of the session. PreFilter is not called, because the passed state already holds
// its results.
func (p *filter) askAbout(ctx context.Context, state *State, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	if p.node == nil || state.skipFilter.Has(p.node.Name()) {
		return nil
	}
	status := p.node.Filter(ctx, state, pod, info)
	if !status.IsSuccess() && !status.IsRejected() {
		return fwk.AsStatus(fmt.Errorf("running %q filter plugin: %w", p.name, statusError(status, "Filter")))
	}
	return status
}

// askOwn runs one of Berth's filters, including its PreFilter part, because the pod may differ from
// the pod being decided, and the cluster has changed.
func askOwn(c *cluster.Cluster, filter plugins.Filter, waiting *cluster.Pod, n *cluster.Node) *fwk.Status {
	judge := filter.Filter(c, waiting)
	switch {
	case judge.Err != nil:
		return fwk.AsStatus(fmt.Errorf("running PreFilter plugin %q: %w", filter.Name(), judge.Err))
	case judge.All != nil:
		return statusOf(judge.All, filter.Name())
	case judge.Only != nil && !judge.Only[n.Name]:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) [%s]", filter.Name()))
	case judge.Node == nil:
		return nil
	}
	if r := judge.Node(n); r != nil {
		return statusOf(r, filter.Name())
	}
	return nil
}

// RunFilterPluginsWithNominatedPods runs the filters on the node with the nominated pods of at
// least this pod's priority and, if the pod fits, without them. Like upstream, the pod must fit
// both ways: nominated pods may take resources and ports, but a pod with affinity to one of them
// must not rely on it.
func (h *handle) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	withGuests, guests := state, info
	for _, guest := range h.NominatedPodsForNode(info.Node().Name) {
		if corev1.PodPriority(guest.GetPod()) < corev1.PodPriority(pod) || guest.GetPod().UID == pod.UID {
			continue
		}
		if guests == info { // first guest: copied, since the caller's state and node must not change
			withGuests, guests = state.Clone(), info.Snapshot()
		}
		guests.AddPodInfo(guest)
		if status := h.RunPreFilterExtensionAddPod(ctx, withGuests, pod, guest, guests); !status.IsSuccess() {
			return status
		}
	}

	if guests != info {
		if status := h.RunFilterPlugins(ctx, withGuests, pod, guests); !status.IsSuccess() {
			return status
		}
	}
	return h.RunFilterPlugins(ctx, state, pod, info)
}

// RunPreFilterExtensionAddPod calls AddPod of the plugins for a pod hypothetically added to the
// node, and records it in the state for Berth's own filters. The caller itself adds the pod to the
// NodeInfo.
func (h *handle) RunPreFilterExtensionAddPod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, come fwk.PodInfo,
	node fwk.NodeInfo) *fwk.Status {
	return h.movePod(ctx, state, pod, come, node, true)
}

// RunPreFilterExtensionRemovePod is RunPreFilterExtensionAddPod for a removed pod.
func (h *handle) RunPreFilterExtensionRemovePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod,
	gone fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return h.movePod(ctx, state, pod, gone, node, false)
}

func (h *handle) movePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, moved fwk.PodInfo, node fwk.NodeInfo,
	added bool) *fwk.Status {
	own, ok := state.(*State)
	if !ok {
		return foreignState(state)
	}
	own.moves = append(own.moves, move{moved.GetPod(), node.Node().Name, added})
	return h.f.movePod(ctx, own, pod, moved, node, added)
}

// RunPreScorePlugins calls the out-of-tree plugins at PreScore; Berth's own scorers need no
// separate preparation.
func (h *handle) RunPreScorePlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	own, ok := state.(*State)
	if !ok {
		return foreignState(state)
	}
	return h.f.preScore(ctx, own, pod, nodes)
}

// RunScorePlugins runs all scorers of the profile on nodes in their current state, and returns
// weighted scores, in the order of the nodes. Hypothetical pods in the NodeInfos count only for
// out-of-tree scorers.
func (h *handle) RunScorePlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod,
	nodes []fwk.NodeInfo) ([]fwk.NodePluginScores, *fwk.Status) {
	own, ok := state.(*State)
	if !ok {
		return nil, foreignState(state)
	}

	y, done := h.f.askBack(ctx)
	if y == nil {
		return nil, fwk.AsStatus(errClosed)
	}

	defer done()
	a := &scoring{c: y.c, ctx: context.WithValue(ctx, askingBack{}, true), state: own, pod: pod, waiting: y.waiting,
		infos: nodes, totals: make([]fwk.NodePluginScores, len(nodes))}
	if pod.UID != a.waiting.UID() {
		a.waiting = y.c.Pending(pod)
	}

	for i, info := range nodes {
		n := y.c.Node(info.Node().Name)
		if n == nil {
			return nil, fwk.AsStatus(fmt.Errorf("nodeinfo not found for node name %q", info.Node().Name))
		}
		a.nodes, a.totals[i].Name = append(a.nodes, n), n.Name
	}

	for _, s := range h.f.profile.Scorers {
		if err := a.addScorer(s); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	return a.totals, nil
}

// AddNominatedPod nominates a pending pod to a node: the node of info in override mode, otherwise
// the one in the pod's status. Decisions see the nomination soon, but not necessarily when
// AddNominatedPod returns (see onOwner).
func (h *handle) AddNominatedPod(_ klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	node := pod.GetPod().Status.NominatedNodeName
	if info.Mode() == fwk.ModeOverride {
		node = info.NominatedNodeName
	}
	h.f.set.onOwner(h.f, func(c *cluster.Cluster) { h.f.set.nominatePod(c, pod.GetPod(), node) })
}

// nominatePod nominates a pending pod. Like upstream, it skips a deleted or bound pod: nothing
// would end its nomination.
func (s *Set) nominatePod(c *cluster.Cluster, pod *v1.Pod, node string) {
	if c.Pod(pod.UID) == nil && s.store.Shown(pod.UID) != nil {
		c.Nominate(c.Pending(pod), node)
	}
}

// DeleteNominatedPodIfExists removes the nomination.
func (h *handle) DeleteNominatedPodIfExists(pod *v1.Pod) {
	h.f.set.onOwner(h.f, func(c *cluster.Cluster) { c.Unnominate(pod.UID) })
}

// UpdateNominatedPod applies the nomination of a changed pod.
func (h *handle) UpdateNominatedPod(_ klog.Logger, old *v1.Pod, pod fwk.PodInfo) {
	h.f.set.onOwner(h.f, func(c *cluster.Cluster) { // a single change: two could be reordered
		c.Unnominate(old.UID)
		if node := pod.GetPod().Status.NominatedNodeName; node != "" {
			h.f.set.nominatePod(c, pod.GetPod(), node)
		}
	})
}

// NominatedPodsForNode lists the pending pods nominated to the node. It uses the current
// nominations while plugins may call back, and otherwise the nominations of the latest snapshot.
func (h *handle) NominatedPodsForNode(node string) []fwk.PodInfo {
	y := h.f.openSession()
	if y == nil {
		return h.f.set.store.latestSnapshot().nominated[node]
	}
	if n := y.c.Node(node); n != nil {
		return rules.Mapped(n.Nominated, func(p *cluster.Pod) fwk.PodInfo { return h.f.set.store.waitingInfo(p) })
	}
	return nil
}

// The parts of a Handle that Berth does not provide return errors when used. They are nil only
// where plugins expect it.

// APIDispatcher and APICacher are nil, as in a kube-scheduler without the feature gate
// SchedulerAsyncAPICalls: plugins call the API themselves.
func (h *handle) APIDispatcher() fwk.APIDispatcher { return nil }
func (h *handle) APICacher() fwk.APICacher         { return nil }

// SharedCSIManager lists the CSINodes from an informer.
func (h *handle) SharedCSIManager() fwk.CSIManager {
	return csiNodes{h.f.set.informers.Storage().V1().CSINodes().Lister()}
}

// csiNodes reads CSINodes from the informer shared by plugins.
type csiNodes struct{ lister storagelisters.CSINodeLister }

func (c csiNodes) CSINodes() fwk.CSINodeLister                 { return c }
func (c csiNodes) List() ([]*storagev1.CSINode, error)         { return c.lister.List(labels.Everything()) }
func (c csiNodes) Get(name string) (*storagev1.CSINode, error) { return c.lister.Get(name) }

// SharedDRAManager cannot be provided: Berth's own DynamicResources keeps its allocations in the
// cluster model used for decisions.
func (h *handle) SharedDRAManager() fwk.SharedDRAManager { return noDevices{} }

// errNoDevices names the working alternative, since plugin authors read it in their own logs.
var errNoDevices = errors.New("berth gives plugins no SharedDRAManager: read ResourceClaims and ResourceSlices from SharedInformerFactory")

// noDevices and its siblings return errNoDevices from every method, or an empty result if the
// method has no error.
type noDevices struct{}

// ResourceClaims and its siblings implement fwk.SharedDRAManager.
func (noDevices) ResourceClaims() fwk.ResourceClaimTracker     { return noClaims{} }
func (noDevices) ResourceSlices() fwk.ResourceSliceLister      { return noDevices{} }
func (noDevices) DeviceClasses() fwk.DeviceClassLister         { return noClasses{} }
func (noDevices) DeviceClassResolver() fwk.DeviceClassResolver { return noClasses{} }

// ListWithDeviceTaintRules implements fwk.ResourceSliceLister.
func (noDevices) ListWithDeviceTaintRules() ([]*resourcev1.ResourceSlice, error) {
	return nil, errNoDevices
}

// noClasses stands in for the device classes, which cannot be listed.
type noClasses struct{}

func (noClasses) List() ([]*resourcev1.DeviceClass, error)               { return nil, errNoDevices }
func (noClasses) Get(string) (*resourcev1.DeviceClass, error)            { return nil, errNoDevices }
func (noClasses) GetDeviceClass(v1.ResourceName) *resourcev1.DeviceClass { return nil }

// noClaims stands in for the claims, which cannot be tracked. Berth's own DynamicResources makes
// the reservations that a plugin would make.
type noClaims struct{}

func (noClaims) List() ([]*resourcev1.ResourceClaim, error)            { return nil, errNoDevices }
func (noClaims) Get(string, string) (*resourcev1.ResourceClaim, error) { return nil, errNoDevices }
func (noClaims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	return nil, errNoDevices
}
func (noClaims) GatherAllocatedState() (*structured.AllocatedState, error) { return nil, errNoDevices }
func (noClaims) SignalClaimPendingAllocation(types.UID, *resourcev1.ResourceClaim) error {
	return errNoDevices
}
func (noClaims) GetPendingAllocation(types.UID) *resourcev1.AllocationResult { return nil }
func (noClaims) MaybeRemoveClaimPendingAllocation(types.UID, bool) bool      { return false }
func (noClaims) AssumeClaimAfterAPICall(*resourcev1.ResourceClaim) error     { return errNoDevices }
func (noClaims) AssumedClaimRestore(string, string)                          {}
