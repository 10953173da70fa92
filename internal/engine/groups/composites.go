package groups

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// CompositePodGroup is the API type: a group of groups. It may be in another one, so that groups
// are the leaves of a tree.
type CompositePodGroup = schedulingv1alpha3.CompositePodGroup

// mostLevels bounds how far a tree is followed upwards. The API allows four levels of composites;
// objects that name each other in a circle have no root, however far one goes.
const mostLevels = 16

// Composite is a composite group: the object, what names it as its parent, or both.
//
// Invariant: it is in the set as long as it has an object or children, and it is among the children
// of the composite that its object names.
type Composite struct {
	cluster.Name
	Object *CompositePodGroup // nil while there is none
	// parent is the composite that the object names, which may have no object yet; nil if it names
	// none.
	parent     *Composite
	groups     map[*Group]bool
	composites map[*Composite]bool

	// Shortened counts the attempts since something of it was placed that ended at their bound. It
	// is the owner's.
	Shortened int
}

// Child is a child of a composite: a group, or another composite. Exactly one of the two is set.
type Child struct {
	Group     *Group
	Composite *Composite
}

// order is what children are sorted by: age, name, and, for a group and a composite of the same
// name, the kind.
func (c Child) order() (created time.Time, name string, kind int) {
	if c.Group != nil {
		return c.Group.Object.CreationTimestamp.Time, c.Group.Name.Name, 1
	}
	return c.Composite.Object.CreationTimestamp.Time, c.Composite.Name.Name, 0
}

// Composite returns the composite of that name, or nil.
func (s *Set) Composite(name cluster.Name) *Composite { return s.composites[name] }

// ByRootUID returns a group of the tree whose root has that UID, or nil.
func (s *Set) ByRootUID(uid types.UID) *Group {
	if c := s.compositesByUID[uid]; c != nil && c.parent == nil {
		for _, g := range c.Leaves() {
			return g
		}
	}
	return nil
}

// Composites returns all composites by namespace and name.
func (s *Set) Composites() []*Composite {
	return slices.SortedFunc(maps.Values(s.composites), func(a, b *Composite) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
	})
}

// composite returns the composite of that name, which is added if there is none: children may come
// before their parent's object.
func (s *Set) composite(name cluster.Name) *Composite {
	c := s.composites[name]
	if c == nil {
		c = &Composite{Name: name, groups: map[*Group]bool{}, composites: map[*Composite]bool{}}
		s.composites[name] = c
	}
	return c
}

// dropComposite forgets a composite that has neither object nor children.
func (s *Set) dropComposite(c *Composite) {
	if c != nil && c.Object == nil && len(c.groups)+len(c.composites) == 0 {
		delete(s.composites, c.Name)
	}
}

// SetComposite records a CompositePodGroup as the API has it.
func (s *Set) SetComposite(object *CompositePodGroup) *Composite {
	c := s.composite(cluster.Name{Namespace: object.Namespace, Name: object.Name})
	s.clearComposite(c)
	c.Object, s.compositesByUID[object.UID] = object, c
	if c.whole() {
		s.whole++
	}
	if parent := object.Spec.ParentCompositePodGroupName; parent != nil {
		c.parent = s.composite(cluster.Name{Namespace: object.Namespace, Name: *parent})
		c.parent.composites[c] = true
	}
	return c
}

// LoseComposite removes a CompositePodGroup. Its children stay.
func (s *Set) LoseComposite(name cluster.Name) {
	if c := s.composites[name]; c != nil {
		s.clearComposite(c)
		s.dropComposite(c)
	}
}

// clearComposite takes out all that the composite's object says. The composite itself stays,
// perhaps without object and children.
func (s *Set) clearComposite(c *Composite) {
	if c.whole() {
		s.whole--
	}
	if c.parent != nil {
		delete(c.parent.composites, c)
		s.dropComposite(c.parent)
	}
	delete(s.compositesByUID, c.UID())
	c.Object, c.parent = nil, nil
}

// link has a group whose object is set be a child of the composite that it names.
func (s *Set) link(g *Group) {
	if parent := g.Object.Spec.ParentCompositePodGroupName; s.Nested && parent != nil {
		g.parent = s.composite(cluster.Name{Namespace: g.Namespace, Name: *parent})
		g.parent.groups[g] = true
	}
}

// unlink takes a group out of its composite.
func (s *Set) unlink(g *Group) {
	if g.parent != nil {
		delete(g.parent.groups, g)
		s.dropComposite(g.parent)
		g.parent = nil
	}
}

// Parent returns the composite that the group is in, or nil. It may have no object yet.
func (g *Group) Parent() *Composite { return g.parent }

// Parent returns the composite that this one is in, or nil.
func (c *Composite) Parent() *Composite { return c.parent }

// Root returns the composite at the top of the group's tree; nil if the group is in none, or
// something above it is missing, so that the tree is not known yet.
func (g *Group) Root() *Composite {
	if top := g.parent.Top(); top != nil && top.Object != nil && top.parent == nil {
		return top
	}
	return nil
}

// Top returns the topmost composite that is known to be above this one, or itself: the root of the
// tree, or what would have to appear for it to have one. If composites name each other in a circle,
// it is one of these.
func (c *Composite) Top() *Composite {
	for range mostLevels {
		if c == nil || c.parent == nil {
			return c
		}
		c = c.parent
	}
	return c.firstOfCircle()
}

// firstOfCircle returns the same composite for all those above which there is no end.
func (c *Composite) firstOfCircle() *Composite {
	first, seen := c, map[*Composite]bool{}
	for ; c != nil && !seen[c]; c = c.parent {
		seen[c] = true
		if c.Name.Name < first.Name.Name {
			first = c
		}
	}
	return first
}

// Children lists what is in the composite and has an object, in the order in which upstream goes
// through it: by age, then by name.
func (c *Composite) Children() (list []Child) {
	for g := range c.groups {
		list = append(list, Child{Group: g})
	}
	for inner := range c.composites {
		list = append(list, Child{Composite: inner})
	}
	slices.SortFunc(list, func(a, b Child) int {
		at, name, kind := a.order()
		bt, other, of := b.order()
		return cmp.Or(at.Compare(bt), cmp.Compare(name, other), cmp.Compare(kind, of))
	})
	return list
}

// Leaves lists the groups of a tree, in the order in which upstream goes through it.
func (c *Composite) Leaves() (list []*Group) { return c.leaves(nil, map[*Composite]bool{}) }

// leaves appends the groups below to list. seen are the composites that were visited.
func (c *Composite) leaves(list []*Group, seen map[*Composite]bool) []*Group {
	if seen[c] { // a circle
		return list
	}
	seen[c] = true
	for _, child := range c.Children() {
		if child.Group != nil {
			list = append(list, child.Group)
		} else {
			list = child.Composite.leaves(list, seen)
		}
	}
	return list
}

// Tree lists the groups that are decided together with this one, itself included: those of its
// tree, as far as it is known. A group without a parent is alone.
func (g *Group) Tree() []*Group {
	if g.parent == nil {
		return []*Group{g}
	}
	return g.parent.Top().Leaves()
}

// SharesTree tells whether two groups are one, or are in one tree.
func (g *Group) SharesTree(other *Group) bool {
	if g == nil || other == nil || g.parent == nil {
		return g == other && g != nil
	}
	return other.parent != nil && g.parent.Top() == other.parent.Top()
}

// MinGroupCount is how many children have to be placed together: 1 if that is not said.
func (c *Composite) MinGroupCount() int {
	if c.Object == nil || c.Object.Spec.SchedulingPolicy.Gang == nil {
		return 1
	}
	return max(1, int(c.Object.Spec.SchedulingPolicy.Gang.MinGroupCount))
}

// TopologyKey returns the label whose value the nodes of all pods below must share, or "".
func (c *Composite) TopologyKey() string {
	if c.Object == nil || c.Object.Spec.SchedulingConstraints == nil {
		return ""
	}
	for _, t := range c.Object.Spec.SchedulingConstraints.Topology {
		return t.Key
	}
	return ""
}

// wholeUpwards reports whether the composite, or one above it, is disrupted as a whole. A nil
// composite is not.
func (c *Composite) wholeUpwards() bool {
	for range mostLevels {
		if c == nil {
			return false
		}
		if c.whole() {
			return true
		}
		c = c.parent
	}
	return false
}

// whole reports whether the composite's own object says that all pods below are disrupted together.
func (c *Composite) whole() bool {
	return c.Object != nil && c.Object.Spec.DisruptionMode != nil && c.Object.Spec.DisruptionMode.All != nil
}

// priority returns the priority of the CompositePodGroup; 0 if it has none.
func (c *Composite) priority() int32 {
	if c.Object.Spec.Priority == nil {
		return 0
	}
	return *c.Object.Spec.Priority
}

// preemptionPolicy is that of the CompositePodGroup; its default if it has none. The object must be
// there.
func (c *Composite) preemptionPolicy() v1.PreemptionPolicy {
	if c.Object.Spec.PreemptionPolicy == nil {
		return v1.PreemptLowerPriority
	}
	return v1.PreemptionPolicy(*c.Object.Spec.PreemptionPolicy)
}

// UID returns that of the object, or "".
func (c *Composite) UID() types.UID {
	if c.Object == nil {
		return ""
	}
	return c.Object.UID
}

// Together lists the groups whose pods leave their nodes together with this one's: those below the
// highest composite above it that is disrupted as a whole, and otherwise itself.
func (g *Group) Together() []*Group {
	var highest *Composite
	c := g.parent
	for range mostLevels {
		if c == nil {
			break
		}
		if c.whole() {
			highest = c
		}
		c = c.parent
	}
	if highest == nil {
		return []*Group{g}
	}
	return highest.Leaves()
}
