// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package groups

import (
	"cmp"
	"maps"
	"slices"
	"time"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// CompositePodGroup is the API type of a group of groups. Composites may be nested, with groups as
// the leaves of the tree.
type CompositePodGroup = schedulingv1alpha3.CompositePodGroup

// mostLevels bounds the walk up a tree. The API allows four levels of composites. Only composites
// that form a cycle, and thus have no root, exceed mostLevels.
const mostLevels = 16

// Composite is a composite group: the object, the children naming it as their parent, or both.
//
// Invariant: a composite is in the set while it has an object or children, and it is a child of the
// composite named by its object.
type Composite struct {
	cluster.Name
	Object *CompositePodGroup // nil if there is none
	// parent is the composite named by the object, possibly without an object yet; nil if the
	// object names none.
	parent     *Composite
	groups     map[*Group]bool
	composites map[*Composite]bool

	// Shortened counts the attempts that were cut short by their limit of work since a part of the
	// composite was last placed. The field belongs to the owner of the set.
	Shortened int
}

// Child is a child of a composite: a group, or another composite. Exactly one of the two is set.
type Child struct {
	Group     *Group
	Composite *Composite
}

// order returns the sort key of a child: age, name, and, for a group and a composite with the same
// name, the kind.
func (c Child) order() (created time.Time, name string, kind int) {
	if c.Group != nil {
		return c.Group.Object.CreationTimestamp.Time, c.Group.Name.Name, 1
	}
	return c.Composite.Object.CreationTimestamp.Time, c.Composite.Name.Name, 0
}

// Composite returns the composite with the given name, or nil.
func (s *Set) Composite(name cluster.Name) *Composite { return s.composites[name] }

// ByUnitUID returns the group in no tree with the given UID, or any group of the tree whose root
// has it, or nil.
func (s *Set) ByUnitUID(uid types.UID) *Group {
	if g := s.byUID[uid]; g != nil && g.parent == nil {
		return g
	}
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

// composite returns the composite with the given name, adding it if necessary, since children may
// appear before their parent's object.
func (s *Set) composite(name cluster.Name) *Composite {
	c := s.composites[name]
	if c == nil {
		c = &Composite{Name: name, groups: map[*Group]bool{}, composites: map[*Composite]bool{}}
		s.composites[name] = c
	}
	return c
}

// dropComposite drops a composite with neither object nor children.
func (s *Set) dropComposite(c *Composite) {
	if c != nil && c.Object == nil && len(c.groups)+len(c.composites) == 0 {
		delete(s.composites, c.Name)
	}
}

// SetComposite records the API state of a CompositePodGroup.
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
		delete(s.Since, c.UID())
		s.clearComposite(c)
		s.dropComposite(c)
	}
}

// clearComposite reverts everything specified by the composite's object. The composite stays in the
// set, possibly without object and children.
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

// link adds a group to the composite named by its object.
func (s *Set) link(g *Group) {
	if parent := g.Object.Spec.ParentCompositePodGroupName; s.Nested && parent != nil {
		g.parent = s.composite(cluster.Name{Namespace: g.Namespace, Name: *parent})
		g.parent.groups[g] = true
	}
}

// unlink removes a group from its composite.
func (s *Set) unlink(g *Group) {
	if g.parent != nil {
		delete(g.parent.groups, g)
		s.dropComposite(g.parent)
		g.parent = nil
	}
}

// Parent returns the composite containing the group, or nil. The composite may lack an object.
func (g *Group) Parent() *Composite { return g.parent }

// Parent returns the composite containing this one, or nil.
func (c *Composite) Parent() *Composite { return c.parent }

// Root returns the composite at the top of the group's tree; nil if the group is in no composite,
// or if an ancestor is missing, so that the root is not known yet.
func (g *Group) Root() *Composite {
	if top := g.parent.Top(); top != nil && top.Object != nil && top.parent == nil {
		return top
	}
	return nil
}

// Top returns the topmost known ancestor of this composite, or itself: the root of the tree, or a
// composite without an object, above which a root may still appear. If composites form a cycle, Top
// returns one of them.
func (c *Composite) Top() *Composite {
	for range mostLevels {
		if c == nil || c.parent == nil {
			return c
		}
		c = c.parent
	}
	return c.firstOfCircle()
}

// firstOfCircle returns the same composite for all members and descendants of a cycle.
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

// Children lists the children with an object, in upstream's traversal order: by age, then by name.
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

// Leaves lists the groups of a tree, in upstream's traversal order.
func (c *Composite) Leaves() (list []*Group) { return c.leaves(nil, map[*Composite]bool{}) }

// leaves appends the groups below c to list. seen holds the visited composites.
func (c *Composite) leaves(list []*Group, seen map[*Composite]bool) []*Group {
	if seen[c] { // a cycle
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

// Tree lists the known groups of the group's tree, which are decided together. The tree of a group
// without a parent contains only this group.
func (g *Group) Tree() []*Group {
	if g.parent == nil {
		return []*Group{g}
	}
	return g.parent.Top().Leaves()
}

// SharesTree reports whether two groups are identical or in the same tree.
func (g *Group) SharesTree(other *Group) bool {
	if g == nil || other == nil || g.parent == nil {
		return g == other && g != nil
	}
	return other.parent != nil && g.parent.Top() == other.parent.Top()
}

// MinGroupCount returns the minimum number of children to place together; 1 by default.
func (c *Composite) MinGroupCount() int {
	if c.Object == nil || c.Object.Spec.SchedulingPolicy.Gang == nil {
		return 1
	}
	return max(1, int(c.Object.Spec.SchedulingPolicy.Gang.MinGroupCount))
}

// TopologyKey returns the label that must have the same value on the nodes of all pods below, or
// "".
func (c *Composite) TopologyKey() string {
	if c.Object == nil || c.Object.Spec.SchedulingConstraints == nil {
		return ""
	}
	for _, t := range c.Object.Spec.SchedulingConstraints.Topology {
		return t.Key
	}
	return ""
}

// highestWhole returns the highest of the composite and its ancestors that is disrupted as a whole,
// or nil.
func (c *Composite) highestWhole() (highest *Composite) {
	for range mostLevels {
		if c == nil {
			break
		}
		if c.whole() {
			highest = c
		}
		c = c.parent
	}
	return highest
}

// whole reports whether the composite's object demands that all pods below are disrupted together.
func (c *Composite) whole() bool {
	return c.Object != nil && c.Object.Spec.DisruptionMode != nil && c.Object.Spec.DisruptionMode.All != nil
}

// UID returns the UID of the object, or "".
func (c *Composite) UID() types.UID {
	if c.Object == nil {
		return ""
	}
	return c.Object.UID
}

// Together lists the groups evicted together with this group: all groups below its highest ancestor
// disrupted as a whole, or only the group itself if there is no such ancestor.
func (g *Group) Together() []*Group {
	highest := g.parent.highestWhole()
	if highest == nil {
		return []*Group{g}
	}
	return highest.Leaves()
}
