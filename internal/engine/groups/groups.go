// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package groups

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// PodGroup is the API type in the served version. Other versions are converted to this type on
// reading.
type PodGroup = schedulingv1beta1.PodGroup

// Set holds all groups. New returns an empty Set.
//
// Invariants: a group is in byName while it has an object or a member, and in byUID while it has an
// object. A pod is a member of at most one group, recorded in byMember; the API does not allow
// changing the group.
type Set struct {
	byName   map[cluster.Name]*Group
	byUID    map[types.UID]*Group // by the UID of the object
	byMember map[types.UID]*Group // by the UID of the member
	whole    int                  // number of groups and composites whose pods may only be disrupted together

	// Nested allows groups in composites. Without it, a PodGroup's reference to a parent is
	// ignored.
	Nested     bool
	composites map[cluster.Name]*Composite

	compositesByUID map[types.UID]*Composite // by the UID of the object

	// Since holds, by the UID of a PodGroup in no tree or of the root of a tree, the time when it
	// was first found to fit nowhere, or when room was reserved for it in vain. The field belongs
	// to the owner of the set.
	Since map[types.UID]time.Time
}

// Group is a pod group: the object, its members, or both.
type Group struct {
	cluster.Name
	Object  *PodGroup          // nil if there is none
	members map[types.UID]bool // members by UID; true for a counted member (see Count)
	counted int                // number of counted members
	parent  *Composite         // composite named by the object; nil if there is none

	// The following fields belong to the owner of the set.

	Done          bool    // the group was scheduled
	LastCondition string  // last condition written
	Last          Attempt // last attempt, if it failed
	Short         int     // lower bound on the number of pods still to be bound before the group counts as scheduled

	// Full and Woken are used for a group in a tree. Full is set once enough of its pods are bound
	// and its tree was updated accordingly. Woken is set once the tree was woken because pods of
	// the group have been placed. A lost member or a change of the tree resets both.
	Full, Woken bool

	// Shortened counts the attempts that reached their limit of work since the group was last
	// placed. Reached holds the nodes found by the last attempt, by pod, if that attempt reached
	// its limit.
	Shortened int
	Reached   map[types.UID]string
}

// Attempt is the outcome of a failed attempt to schedule a group. Tried is the number of pods, Fit
// is the number of pods with a suitable node, and Needed is the number of pods to place together.
// Message explains the failure and is the message of the condition.
type Attempt struct {
	Tried, Fit, Needed int
	Message            string
}

// Forget clears the owner's fields, for a new object with the same name.
func (g *Group) Forget() {
	g.Done, g.LastCondition, g.Last, g.Short = false, "", Attempt{}, 0
	g.Shortened, g.Reached = 0, nil
	g.Full, g.Woken = false, false
}

// New returns a set without groups.
func New() *Set {
	return &Set{
		byName: map[cluster.Name]*Group{}, byUID: map[types.UID]*Group{}, byMember: map[types.UID]*Group{},
		composites: map[cluster.Name]*Composite{}, compositesByUID: map[types.UID]*Composite{},
		Since: map[types.UID]time.Time{},
	}
}

// NameOf returns the name of the pod's group, or "" if the pod has no group.
func NameOf(pod *v1.Pod) string {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return *g.PodGroupName
	}
	return ""
}

// Get returns the group with the given name, or nil.
func (s *Set) Get(name cluster.Name) *Group { return s.byName[name] }

// GroupOf returns the group of a member, or nil.
func (s *Set) GroupOf(uid types.UID) *Group { return s.byMember[uid] }

// ByUID returns the group with the given object UID, or nil.
func (s *Set) ByUID(uid types.UID) *Group { return s.byUID[uid] }

// Sorted returns all groups by namespace and name.
func (s *Set) Sorted() []*Group {
	return slices.SortedFunc(maps.Values(s.byName), func(a, b *Group) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
	})
}

// group returns the group with the given name, adding it if necessary, since pods may appear before
// their PodGroup.
func (s *Set) group(name cluster.Name) *Group {
	g := s.byName[name]
	if g == nil {
		g = &Group{Name: name, members: map[types.UID]bool{}}
		s.byName[name] = g
	}
	return g
}

// drop drops a group with neither object nor members.
func (s *Set) drop(g *Group) {
	if g.Object == nil && len(g.members) == 0 {
		delete(s.byName, g.Name)
	}
}

// SetObject records the API state of a PodGroup, replacing the previous state. A new object with
// the same name does not clear the owner's fields: see Forget.
func (s *Set) SetObject(object *PodGroup) *Group {
	g := s.group(cluster.Name{Namespace: object.Namespace, Name: object.Name})
	s.clear(g)
	g.Object, s.byUID[object.UID] = object, g
	if g.whole() {
		s.whole++
	}
	s.link(g)
	return g
}

// LoseObject removes a PodGroup. Its members stay.
func (s *Set) LoseObject(name cluster.Name) {
	if g := s.byName[name]; g != nil {
		if g.Object != nil {
			delete(s.Since, g.Object.UID)
		}
		s.clear(g)
		s.drop(g)
	}
}

// clear reverts everything specified by the group's object. Members and the owner's fields stay.
func (s *Set) clear(g *Group) {
	if g.whole() {
		s.whole--
	}
	s.unlink(g)
	if g.Object != nil {
		delete(s.byUID, g.Object.UID)
	}
	g.Object = nil
}

// AnyWhole reports whether the pods of any group or composite may only be disrupted together.
func (s *Set) AnyWhole() bool { return s.whole > 0 }

// SetPod records the API state of a pod, and returns its group. It returns nil if the pod is in no
// group or has ended; LosePod removes an ended member. ours is set if a profile of this scheduler
// places the pod, or if the pod has a node. If ours is true, the pod is counted unless it is being
// deleted. The result by is the change in the group's count.
func (s *Set) SetPod(pod *v1.Pod, ours bool) (g *Group, by int) {
	name := NameOf(pod)
	if name == "" || rules.IsTerminal(pod) {
		return nil, 0
	}
	g = s.group(cluster.Name{Namespace: pod.Namespace, Name: name})
	was, counts := g.members[pod.UID], ours && pod.DeletionTimestamp == nil
	g.members[pod.UID], s.byMember[pod.UID] = counts, g
	switch {
	case counts && !was:
		by = 1
	case was && !counts:
		by = -1
	}
	g.counted += by
	return g, by
}

// LosePod removes a deleted or terminated pod, and returns its group, or nil. The result by is the
// change in the group's count.
func (s *Set) LosePod(uid types.UID) (g *Group, by int) {
	if g = s.byMember[uid]; g == nil {
		return nil, 0
	}
	if g.members[uid] {
		by = -1
	}
	g.counted += by
	delete(g.members, uid)
	delete(s.byMember, uid)
	s.drop(g)
	return g, by
}

// Count returns the number of counted members: members that are not being deleted and that have a
// node or are placed by a profile of this scheduler.
func (g *Group) Count() int { return g.counted }

// Counted yields the UIDs of the counted members, in no particular order.
func (g *Group) Counted(yield func(types.UID) bool) {
	for uid, counts := range g.members {
		if counts && !yield(uid) {
			return
		}
	}
}

// Members yields the UIDs of all members, in no particular order.
func (g *Group) Members(yield func(types.UID) bool) { maps.Keys(g.members)(yield) }

// MinCount returns the minimum number of pods to place together for a gang; 0 for a basic group or
// a group without an object.
func (g *Group) MinCount() int {
	if g.Object == nil || g.Object.Spec.SchedulingPolicy.Gang == nil {
		return 0
	}
	return int(g.Object.Spec.SchedulingPolicy.Gang.MinCount)
}

// TopologyKey returns the label that must have the same value on all members' nodes, or "" for
// none.
func (g *Group) TopologyKey() string {
	if g.Object == nil || g.Object.Spec.SchedulingConstraints == nil {
		return ""
	}
	for _, t := range g.Object.Spec.SchedulingConstraints.Topology {
		return t.Key
	}
	return ""
}

// Whole reports whether the group's pods may only be preempted all together: because of the group's
// object, or of a composite above it.
func (g *Group) Whole() bool { return g.whole() || g.WholeAbove() }

// WholeAbove reports whether a composite above the group requires that its pods are preempted
// together.
func (g *Group) WholeAbove() bool { return g.parent.highestWhole() != nil }

// whole reports whether the group's object demands that its pods are disrupted together.
func (g *Group) whole() bool {
	return g.Object != nil && g.Object.Spec.DisruptionMode != nil && g.Object.Spec.DisruptionMode.All != nil
}

// Priority returns the priority of the PodGroup, or of the root of its tree. The default is 0.
func (g *Group) Priority() int32 {
	if root := g.Root(); root != nil {
		return ptr.Deref(root.Object.Spec.Priority, 0)
	}
	if g.Object == nil {
		return 0
	}
	return ptr.Deref(g.Object.Spec.Priority, 0)
}

// PreemptionPolicy returns the policy of the PodGroup or, for a group in a tree, of the root. If
// the policy is unset, it returns the default.
func (g *Group) PreemptionPolicy() v1.PreemptionPolicy {
	if root := g.Root(); root != nil {
		return cmp.Or(v1.PreemptionPolicy(ptr.Deref(root.Object.Spec.PreemptionPolicy, "")), v1.PreemptLowerPriority)
	}
	if g.Object == nil {
		return v1.PreemptLowerPriority
	}
	return cmp.Or(v1.PreemptionPolicy(ptr.Deref(g.Object.Spec.PreemptionPolicy, "")), v1.PreemptLowerPriority)
}

// Condition returns the PodGroupInitiallyScheduled condition in the API, or nil.
func (g *Group) Condition() *metav1.Condition {
	if g.Object == nil {
		return nil
	}
	return meta.FindStatusCondition(g.Object.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
}

// Scheduled reports whether the API marks the group as scheduled.
func (g *Group) Scheduled() bool {
	c := g.Condition()
	return c != nil && c.Status == metav1.ConditionTrue
}
