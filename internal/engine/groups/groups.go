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

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// PodGroup is the API type in the version that is served. Other versions are converted to it where
// objects are read.
type PodGroup = schedulingv1beta1.PodGroup

// Set holds all groups. New returns an empty one.
//
// Invariants: a group is in byName as long as it has an object or a member, and in byUID under its
// object's UID. A pod is a member of one group at most, and in of; the API does not let it change
// its group.
type Set struct {
	byName map[cluster.Name]*Group
	byUID  map[types.UID]*Group // by the UID of the object
	of     map[types.UID]*Group // by member
	whole  int                  // how many groups, and composites, are disrupted as a whole

	// Nested has groups be in composites. Without it, what a PodGroup says of a parent is ignored.
	Nested     bool
	composites map[cluster.Name]*Composite

	compositesByUID map[types.UID]*Composite // by the UID of the object
}

// Group is a pod group: the object, its members, or both.
type Group struct {
	cluster.Name
	Object  *PodGroup          // nil while there is none
	members map[types.UID]bool // whether the member counts; see Count
	counted int                // members that count
	parent  *Composite         // that its object names; nil if it is in none

	// The following is the owner's.

	Done  bool    // the group was scheduled
	Said  string  // the last condition that was written
	Last  Attempt // the last attempt, if it failed
	Short int     // at least this many more pods must be bound before the group can be scheduled

	// Of a group in a tree: Full, its own pods are bound, which was told to the tree; Woken, the
	// tree was told that the group has been scheduled and is still there. A loss ends both.
	Full, Woken bool

	// Shortened counts the attempts since it was placed that ended at their bound, and Reached has
	// the nodes that the last attempt had found, by pod, if it did.
	Shortened int
	Reached   map[types.UID]string

	// Since is when it was first found to fit nowhere, or when room was reserved for it in vain.
	Since time.Time
}

// Attempt is the outcome of a failed attempt to schedule a group: of the Tried pods, Fit would have
// found a node, and Needed would have to together. Message says why, in the words of the condition.
type Attempt struct {
	Tried, Fit, Needed int
	Message            string
}

// Forget clears the owner's fields, for a new object of the same name.
func (g *Group) Forget() {
	g.Done, g.Said, g.Last, g.Short, g.Since = false, "", Attempt{}, 0, time.Time{}
	g.Shortened, g.Reached = 0, nil
	g.Full, g.Woken = false, false
}

// New returns a set without groups.
func New() *Set {
	return &Set{
		byName: map[cluster.Name]*Group{}, byUID: map[types.UID]*Group{}, of: map[types.UID]*Group{},
		composites: map[cluster.Name]*Composite{}, compositesByUID: map[types.UID]*Composite{},
	}
}

// NameOf returns the name of the pod's group, or "" if it has none.
func NameOf(pod *v1.Pod) string {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return *g.PodGroupName
	}
	return ""
}

// Get returns the group of that name, or nil.
func (s *Set) Get(name cluster.Name) *Group { return s.byName[name] }

// Of returns the group that a pod is a member of, or nil.
func (s *Set) Of(uid types.UID) *Group { return s.of[uid] }

// ByUID returns the group whose object has that UID, or nil.
func (s *Set) ByUID(uid types.UID) *Group { return s.byUID[uid] }

// Sorted returns all groups by namespace and name.
func (s *Set) Sorted() []*Group {
	return slices.SortedFunc(maps.Values(s.byName), func(a, b *Group) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
	})
}

// group returns the group of that name, which is added if there is none: pods may come before their
// PodGroup.
func (s *Set) group(name cluster.Name) *Group {
	g := s.byName[name]
	if g == nil {
		g = &Group{Name: name, members: map[types.UID]bool{}}
		s.byName[name] = g
	}
	return g
}

// drop forgets a group that has neither object nor members.
func (s *Set) drop(g *Group) {
	if g.Object == nil && len(g.members) == 0 {
		delete(s.byName, g.Name)
	}
}

// SetObject records a PodGroup as the API has it, in place of what was recorded of that name. A new
// object of the same name does not clear the owner's fields: see Forget.
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
		s.clear(g)
		s.drop(g)
	}
}

// clear takes out all that the group's object says. Members and the owner's fields stay.
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

// AnyWhole reports whether some group is Whole.
func (s *Set) AnyWhole() bool { return s.whole > 0 }

// SetPod records a pod as the API has it, and returns its group, or nil if the pod has none or has
// ended. ours: a profile of this scheduler places the pod, or it has a node. It counts unless it is
// being deleted. by is the resulting change of the group's count.
func (s *Set) SetPod(pod *v1.Pod, ours bool) (g *Group, by int) {
	name := NameOf(pod)
	if name == "" || rules.IsTerminal(pod) {
		s.LosePod(pod.UID)
		return nil, 0
	}
	g = s.group(cluster.Name{Namespace: pod.Namespace, Name: name})
	was, counts := g.members[pod.UID], ours && pod.DeletionTimestamp == nil
	g.members[pod.UID], s.of[pod.UID] = counts, g
	switch {
	case counts && !was:
		by = 1
	case was && !counts:
		by = -1
	}
	g.counted += by
	return g, by
}

// LosePod removes a pod that was deleted or has ended, and returns its group, or nil. by is the
// resulting change of the group's count.
func (s *Set) LosePod(uid types.UID) (g *Group, by int) {
	if g = s.of[uid]; g == nil {
		return nil, 0
	}
	if g.members[uid] {
		by = -1
	}
	g.counted += by
	delete(g.members, uid)
	delete(s.of, uid)
	s.drop(g)
	return g, by
}

// Count returns the number of members that count: those that a profile of this scheduler places, or
// that have a node, and that are not being deleted.
func (g *Group) Count() int { return g.counted }

// Counted yields the UIDs of the members that count, in no order.
func (g *Group) Counted(yield func(types.UID) bool) {
	for uid, counts := range g.members {
		if counts && !yield(uid) {
			return
		}
	}
}

// Members yields the UIDs of all members in no order.
func (g *Group) Members(yield func(types.UID) bool) {
	for uid := range g.members {
		if !yield(uid) {
			return
		}
	}
}

// MinCount returns how many pods of a gang must be placed together; 0 for a basic group, and for a
// group without an object.
func (g *Group) MinCount() int {
	if g.Object == nil || g.Object.Spec.SchedulingPolicy.Gang == nil {
		return 0
	}
	return int(g.Object.Spec.SchedulingPolicy.Gang.MinCount)
}

// TopologyKey returns the label whose value all members' nodes must share, or "" if there is none.
func (g *Group) TopologyKey() string {
	if g.Object == nil || g.Object.Spec.SchedulingConstraints == nil {
		return ""
	}
	for _, t := range g.Object.Spec.SchedulingConstraints.Topology {
		return t.Key
	}
	return ""
}

// Whole reports whether the group's pods may only be preempted all together: because of its own
// object, or of a composite above it.
func (g *Group) Whole() bool { return g.whole() || g.parent.wholeUpwards() }

// WholeAbove reports whether they may only because of a composite above it.
func (g *Group) WholeAbove() bool { return g.parent.wholeUpwards() }

// whole reports whether the group's own object says that its pods are disrupted together.
func (g *Group) whole() bool {
	return g.Object != nil && g.Object.Spec.DisruptionMode != nil && g.Object.Spec.DisruptionMode.All != nil
}

// Priority returns the priority of the PodGroup, or of the root of its tree; 0 if it has none.
func (g *Group) Priority() int32 {
	if root := g.Root(); root != nil {
		return root.priority()
	}
	if g.Object == nil || g.Object.Spec.Priority == nil {
		return 0
	}
	return *g.Object.Spec.Priority
}

// PreemptionPolicy returns that of the PodGroup, or of the root of its tree; its default if it has
// none.
func (g *Group) PreemptionPolicy() v1.PreemptionPolicy {
	if root := g.Root(); root != nil {
		return root.preemptionPolicy()
	}
	if g.Object == nil || g.Object.Spec.PreemptionPolicy == nil {
		return v1.PreemptLowerPriority
	}
	return v1.PreemptionPolicy(*g.Object.Spec.PreemptionPolicy)
}

// Condition returns the PodGroupInitiallyScheduled condition in the API, or nil.
func (g *Group) Condition() *metav1.Condition {
	if g.Object == nil {
		return nil
	}
	return meta.FindStatusCondition(g.Object.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
}

// Scheduled reports whether the API says that the group has been scheduled.
func (g *Group) Scheduled() bool {
	c := g.Condition()
	return c != nil && c.Status == metav1.ConditionTrue
}
