// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"encoding/json"
	"math"
	"sync"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/scheduler/runner"
)

// handle is the framework handle passed to plugins when they are created, before the profile
// exists, and used later from any goroutine. Its methods therefore read the current state on each
// call: a scheduler may not be attached yet, and a snapshot may be missing.
//
// This file holds the methods available at any time. The methods in handle_ask.go are available
// only during a call in a cycle; Berth does not provide those at its end.
type handle struct {
	f          *framework
	preBinding sync.Map // *preBinding by UID, of the profile's pods between PreBind and their binding
}

var _ fwk.Handle = &handle{}

// ClientSet and its siblings implement fwk.Handle. Informers requested from Set.informers before
// Start are synced when the scheduler starts.
func (h *handle) ClientSet() kubernetes.Interface                        { return h.f.set.options.Client }
func (h *handle) KubeConfig() *rest.Config                               { return h.f.set.options.KubeConfig }
func (h *handle) EventRecorder() events.EventRecorderLogger              { return h.f.set.recorderFor(h.f.name) }
func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.f.set.informers }
func (h *handle) Extenders() []fwk.Extender                              { return h.f.set.extenders }
func (h *handle) Parallelizer() fwk.Parallelizer                         { return parallelizer{h.f.set} }
func (h *handle) ProfileName() string                                    { return h.f.name }

// SnapshotSharedLister shows the cluster at the beginning of the current pod's turn, even if the
// lister was obtained earlier: plugins obtain it once, in their factory.
func (h *handle) SnapshotSharedLister() fwk.SharedLister { return sharedLister{h.f.set.store} }

// Activate moves waiting pods to the active queue, and ignores other pods. Before Attach, it does
// nothing.
func (h *handle) Activate(_ klog.Logger, pods map[string]*v1.Pod) { h.f.set.activatePods(pods) }

// IterateOverWaitingPods calls the callback for every pod of this profile held at Permit.
func (h *handle) IterateOverWaitingPods(callback func(fwk.WaitingPod)) {
	if host := h.f.set.host(); host != nil {
		host.EachWaitingPod(func(w *runner.WaitingPod) {
			if w.Pod().Spec.SchedulerName == h.f.name {
				callback(waitingPod{w})
			}
		})
	}
}

// GetWaitingPod returns the pod if it is held at Permit, or nil.
func (h *handle) GetWaitingPod(uid types.UID) fwk.WaitingPod {
	if host := h.f.set.host(); host != nil {
		if w := host.WaitingPod(uid); w != nil {
			return waitingPod{w}
		}
	}
	return nil
}

// RejectWaitingPod rejects a pod held at Permit, and reports whether it was held. The message is
// upstream's.
func (h *handle) RejectWaitingPod(uid types.UID) bool {
	w := h.GetWaitingPod(uid)
	return w != nil && w.Reject("", "removed")
}

// waitingPod is a pod held at Permit. Its methods may be called from any goroutine, and have no
// effect after the pod's wait has ended.
type waitingPod struct{ *runner.WaitingPod }

// GetPod and its siblings implement fwk.WaitingPod.
func (p waitingPod) GetPod() *v1.Pod             { return p.Pod() }
func (p waitingPod) GetPendingPlugins() []string { return p.Pending() }

// AddPodInPreBind is for schedulers with their own binding; Berth records such pods itself (see
// toPreBind). It replaces the pod's existing record.
func (h *handle) AddPodInPreBind(uid types.UID, cancel context.CancelCauseFunc) {
	h.preBinding.Store(uid, &preBinding{cancels: []context.CancelCauseFunc{cancel}})
}

// GetPodInPreBind returns the pod's record, or nil if the pod is neither at PreBind nor being
// bound.
func (h *handle) GetPodInPreBind(uid types.UID) fwk.PodInPreBind {
	if b, ok := h.preBinding.Load(uid); ok {
		return b.(*preBinding)
	}
	return nil
}

// RemovePodInPreBind removes the pod's record.
func (h *handle) RemovePodInPreBind(uid types.UID) { h.preBinding.Delete(uid) }

// SignPod encodes everything that affects the pod's placement: pods with the same signature are
// judged alike. It returns nil, upstream's "cannot be signed", if an out-of-tree plugin that
// filters or scores does not sign. Upstream's plugins each sign the fragments of the spec they
// read; for Berth's own plugins the signature covers the whole spec and the labels instead.
func (h *handle) SignPod(ctx context.Context, pod *v1.Pod) fwk.PodSignature {
	spec := pod.Spec.DeepCopy()
	// A pod has the same signature before and after its node is set.
	spec.NodeName = ""
	parts := map[string]any{
		fwk.SchedulerNameSignerName: pod.Spec.SchedulerName, "v1.Pod.Namespace": pod.Namespace,
		"v1.Pod.Labels": pod.Labels, "v1.Pod.Spec": spec,
	}

	for _, point := range []plugins.Point{plugins.PreFilter, plugins.Filters, plugins.PreScore, plugins.Score} {
		for _, plugin := range pluginsAt[fwk.Plugin](h.f, point) {
			signer, ok := plugin.(fwk.SignPlugin)
			if !ok {
				return nil
			}
			fragments, status := signer.SignPod(ctx, pod)
			if !status.IsSuccess() {
				return nil
			}
			for _, fragment := range fragments {
				parts[fragment.Key] = fragment.Value
			}
		}
	}

	signature, err := json.Marshal(parts)
	if err != nil {
		klog.FromContext(ctx).Error(err, "SignPod failed to marshal signature object")
		return nil
	}
	return signature
}

// parallelizer runs up to the configured number of pieces concurrently (parallelism).
type parallelizer struct{ set *Set }

// Until implements fwk.Parallelizer. It returns when all pieces are done, or when ctx ends and the
// begun pieces are done. The chunk size is upstream's: the square root of the pieces, but at most
// one worker's share.
func (p parallelizer) Until(ctx context.Context, pieces int, piece workqueue.DoWorkPieceFunc, _ string) {
	workers := int(p.set.parallelism.Load())
	chunk := max(1, min(int(math.Sqrt(float64(pieces))), pieces/workers+1))
	workqueue.ParallelizeUntil(ctx, workers, pieces, piece, workqueue.WithChunkSize(chunk))
}

// groupStore holds the PodGroups; the pods naming them are in Store.byGroup. The lock mu guards
// objects. A goroutine that also needs the Store's lock takes the Store's lock first.
type groupStore struct {
	mu      sync.Mutex
	objects map[cluster.Name]*groups.PodGroup
}

// Group stores a PodGroup of the API. Groups are kept even while plugins need no pods and nodes:
// they are few, and Need does not list them.
func (s *Store) Group(object *groups.PodGroup) {
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	s.groups.objects[cluster.Name{Namespace: object.Namespace, Name: object.Name}] = object
}

// GroupGone forgets a PodGroup.
func (s *Store) GroupGone(name cluster.Name) {
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	delete(s.groups.objects, name)
}

// groupManager shows pod groups to plugins, but no composite pod groups.
type groupManager struct{ store *Store }

// PodGroupManager implements fwk.Handle.
func (h *handle) PodGroupManager() fwk.PodGroupManager { return groupManager{h.f.set.store} }

// PodGroupStates and its siblings implement fwk.PodGroupManager.
func (m groupManager) PodGroupStates() fwk.PodGroupStateLister { return groupStates(m) }
func (m groupManager) PodGroups() fwk.PodGroupLister           { return groupLister(m) }
func (groupManager) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}
func (groupManager) CompositePodGroups() fwk.CompositePodGroupLister { return noCompositeGroups{} }

// BuildHierarchySnapshotFromPod returns the flat hierarchy: a group is its own root.
func (m groupManager) BuildHierarchySnapshotFromPod(*v1.Pod) (fwk.PodGroupManager, error) {
	return m, nil
}

// GetRootKeyForGroup implements fwk.PodGroupManager.
func (m groupManager) GetRootKeyForGroup(key fwk.EntityKey) (fwk.EntityKey, bool, error) {
	_, err := groupLister(m).Get(key.Namespace, key.Name)
	return key, err == nil && key.Type == fwk.PodGroupKeyType, nil
}

// groupLister lists the existing PodGroups, with or without pods.
type groupLister struct{ store *Store }

// Get implements fwk.PodGroupLister.
func (l groupLister) Get(namespace, name string) (*schedulingv1beta1.PodGroup, error) {
	l.store.groups.mu.Lock()
	defer l.store.groups.mu.Unlock()
	if object := l.store.groups.objects[cluster.Name{Namespace: namespace, Name: name}]; object != nil {
		return object, nil
	}
	return nil, apierrors.NewNotFound(schedulingv1beta1.Resource("podgroups"), name)
}

// groupStates lists the states of groups' pods.
type groupStates struct{ store *Store }

// Get implements fwk.PodGroupStateLister. It returns the pods naming the group, in their state in
// the API and in the latest snapshot. A group with neither pods nor an object is not found; a group
// with pods may still wait for its object.
//
// A pod is assigned once the API shows its node, assumed while only the snapshot has it on a node,
// and unscheduled otherwise.
func (l groupStates) Get(namespace, name string) (fwk.PodGroupState, error) {
	placed := l.store.latestSnapshot().placed()
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	members := l.store.byGroup[cluster.Name{Namespace: namespace, Name: name}]
	if len(members) == 0 {
		if _, err := (groupLister(l)).Get(namespace, name); err != nil {
			return nil, err
		}
	}

	s := &podGroupState{all: sets.New[types.UID](), assumed: sets.New[types.UID](), assigned: sets.New[types.UID](),
		unscheduled: map[string]*v1.Pod{}}
	for uid := range members {
		pod := l.store.pods[uid].info.pod
		s.all.Insert(uid)
		switch on := placed[uid]; {
		case pod.Spec.NodeName != "":
			s.assigned.Insert(uid)
			s.scheduled = append(s.scheduled, pod)
		case on != nil:
			s.assumed.Insert(uid)
			s.scheduled = append(s.scheduled, on)
		default:
			s.unscheduled[pod.Namespace+"/"+pod.Name] = pod
		}
	}
	return s, nil
}

// podGroupState holds the pods of a group. It is created per call, and belongs to the caller.
type podGroupState struct {
	all, assumed, assigned sets.Set[types.UID] // assumed and assigned are disjoint
	unscheduled            map[string]*v1.Pod  // by namespace/name
	scheduled              []*v1.Pod           // assumed and assigned pods, each with its node
}

// AllPods and its siblings implement fwk.PodGroupState.
func (s *podGroupState) AllPods() sets.Set[types.UID]        { return s.all }
func (s *podGroupState) AllPodsCount() int                   { return s.all.Len() }
func (s *podGroupState) UnscheduledPods() map[string]*v1.Pod { return s.unscheduled }
func (s *podGroupState) AssumedPods() sets.Set[types.UID]    { return s.assumed }
func (s *podGroupState) AssignedPods() sets.Set[types.UID]   { return s.assigned }
func (s *podGroupState) ScheduledPods() []*v1.Pod            { return s.scheduled }
func (s *podGroupState) ScheduledPodsCount() int             { return len(s.scheduled) }

// noCompositeStates and noCompositeGroups find nothing: composite pod groups are not shown to
// plugins.
type (
	noCompositeStates struct{}
	noCompositeGroups struct{}
)

func (noCompositeStates) Get(_, name string) (fwk.CompositePodGroupState, error) {
	return nil, apierrors.NewNotFound(schedulingv1alpha3.Resource("compositepodgroups"), name)
}

func (noCompositeGroups) Get(_, name string) (*schedulingv1alpha3.CompositePodGroup, error) {
	return nil, apierrors.NewNotFound(schedulingv1alpha3.Resource("compositepodgroups"), name)
}
