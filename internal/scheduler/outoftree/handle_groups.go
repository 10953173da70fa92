// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

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
