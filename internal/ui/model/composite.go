// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// initiallyScheduled is the condition of a CompositePodGroup that the API reserves for schedulers.
// Neither Berth nor kube-scheduler writes it yet.
const initiallyScheduled = "CompositePodGroupInitiallyScheduled"

// CompositeInfo is the stored part of a CompositePodGroup. It is immutable.
type CompositeInfo struct {
	name    types.NamespacedName
	parent  types.NamespacedName // empty name: the group is a root
	needed  int                  // groups that are placed together or not at all; 0: not a gang
	message string               // message of the condition initiallyScheduled, unless it is true
}

// CompositeOf extracts the stored part of an object.
func CompositeOf(object *schedulingv1alpha3.CompositePodGroup) *CompositeInfo {
	c := &CompositeInfo{
		name:   types.NamespacedName{Namespace: object.Namespace, Name: object.Name},
		parent: parentOf(object.Namespace, object.Spec.ParentCompositePodGroupName),
	}
	if gang := object.Spec.SchedulingPolicy.Gang; gang != nil {
		c.needed = int(gang.MinGroupCount)
	}
	if said := meta.FindStatusCondition(object.Status.Conditions, initiallyScheduled); said != nil && said.Status != metav1.ConditionTrue {
		c.message = internString(said.Message)
	}
	return c
}

// parentOf returns the CompositePodGroup named as an object's parent.
func parentOf(namespace string, name *string) (parent types.NamespacedName) {
	if name == nil {
		return parent
	}
	return types.NamespacedName{Namespace: namespace, Name: internString(*name)}
}

// composite is an observed CompositePodGroup, or one referenced as a parent.
type composite struct {
	info               *CompositeInfo // nil: not observed
	list               uint32         // number of the last list that contained the object
	groups, composites map[types.NamespacedName]bool
	shown              Composite // shown row; zero: not shown
}

// Trees are the CompositePodGroups with their descendants. A tree is shown as a whole.
type Trees struct {
	// byName holds every observed composite, and every composite referenced as a parent.
	byName map[types.NamespacedName]*composite
	dirty  map[types.NamespacedName]bool // composites whose rows may have changed
	list   uint32                        // the number of the current list
	listed bool                          // a list has been completed
	// groups and dirtyGroups are the fields of the Cluster.
	groups      map[types.NamespacedName]*group
	dirtyGroups map[types.NamespacedName]bool
}

// Listing begins a list of CompositePodGroups. Composites not observed before the next Listed have
// been deleted.
func (ts *Trees) Listing() { ts.list++ }

// Listed ends a list of CompositePodGroups. Before the first list, groups are shown without a tree.
// An API without CompositePodGroups never provides a list.
func (ts *Trees) Listed() {
	for name, tree := range ts.byName {
		if tree.info != nil && tree.list != ts.list {
			ts.Gone(name)
		}
	}
	if !ts.listed {
		ts.listed = true
		touchAll(ts.dirty, ts.byName)
	}
}

// Seen applies a CompositePodGroup, new or changed.
func (ts *Trees) Seen(info *CompositeInfo) {
	tree := ts.compositeNamed(info.name)
	if tree.info != nil && tree.info.parent.Name != "" {
		delete(ts.compositeNamed(tree.info.parent).composites, info.name)
	}
	if info.parent.Name != "" {
		ts.compositeNamed(info.parent).composites[info.name] = true
	}
	tree.info, tree.list = info, ts.list
}

// Gone removes a CompositePodGroup.
func (ts *Trees) Gone(name types.NamespacedName) {
	tree := ts.byName[name]
	if tree == nil || tree.info == nil {
		return
	}
	ts.dirty[name] = true
	if parent := tree.info.parent; parent.Name != "" {
		delete(ts.compositeNamed(parent).composites, name)
	}
	tree.info = nil
}

// compositeNamed returns the composite with a name, for the caller to change. It creates the
// composite if needed, and marks its row as dirty.
func (ts *Trees) compositeNamed(name types.NamespacedName) *composite {
	tree := ts.byName[name]
	if tree == nil {
		tree = &composite{groups: map[types.NamespacedName]bool{}, composites: map[types.NamespacedName]bool{}}
		ts.byName[name] = tree
	}
	ts.dirty[name] = true
	return tree
}

// showTrees updates the rows of all composites in trees that may have changed, and marks the groups
// of these trees as dirty. A tree is shown as a whole while one of its pods is pending.
func (ts *Trees) showTrees(set *Set[Composite]) {
	for name := range ts.dirtyGroups {
		if parent := ts.groups[name].parent(); parent.Name != "" {
			ts.dirty[parent] = true
		}
	}
	if !ts.listed {
		return
	}

	tops := map[types.NamespacedName]bool{}
	for name := range ts.dirty {
		tops[ts.topOf(name)] = true
	}
	for top := range tops {
		t := ts.readTree(top)
		for _, name := range t.groups {
			g := ts.groups[name]
			g.tree, g.treeWaits = top.String(), t.waits
			ts.dirtyGroups[name] = true
		}
		for _, name := range t.composites {
			delete(ts.dirty, name)
			ts.showComposite(name, ts.compositeRow(name, t), set)
		}
	}
}

// showComposite replaces the shown row of a composite. A zero row removes it.
func (ts *Trees) showComposite(name types.NamespacedName, row Composite, set *Set[Composite]) {
	tree := ts.byName[name]
	replaceRow(set, tree.shown.Key, &tree.shown, row)
	// The composite has neither an object nor children.
	if tree.info == nil && len(tree.groups)+len(tree.composites) == 0 {
		delete(ts.byName, name)
	}
}

// topOf returns the root of a composite's tree. If composites form a cycle of parents and thus have
// no root, it returns the first composite of the cycle by name.
func (ts *Trees) topOf(name types.NamespacedName) types.NamespacedName {
	seen := map[types.NamespacedName]bool{}
	for !seen[name] {
		seen[name] = true
		parent := ts.byName[name].parent()
		if parent.Name == "" {
			return name
		}
		name = parent
	}

	first := name
	for next := ts.byName[name].parent(); next != name; next = ts.byName[next].parent() {
		if next.Name < first.Name {
			first = next
		}
	}
	return first
}

func (t *composite) parent() (parent types.NamespacedName) {
	if t == nil || t.info == nil {
		return parent
	}
	return t.info.parent
}

// treeView is a tree while its rows are computed.
type treeView struct {
	groups, composites []types.NamespacedName
	waits              bool // a pod in the tree is pending
	rootless           bool
}

// readTree lists a composite and its descendants.
func (ts *Trees) readTree(top types.NamespacedName) *treeView {
	t := &treeView{rootless: ts.byName[top].parent().Name != ""}
	seen := map[types.NamespacedName]bool{}
	var read func(name types.NamespacedName)
	read = func(name types.NamespacedName) {
		if seen[name] {
			return
		}

		seen[name] = true
		t.composites = append(t.composites, name)
		for _, group := range sortedNamespaced(ts.byName[name].groups) {
			t.groups = append(t.groups, group)
			t.waits = t.waits || ts.groups[group].waits()
		}
		for _, below := range sortedNamespaced(ts.byName[name].composites) {
			read(below)
		}
	}
	read(top)
	return t
}

func sortedNamespaced(names map[types.NamespacedName]bool) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(names), func(a, b types.NamespacedName) int { return cmp.Compare(a.Name, b.Name) })
}

// compositeRow returns the row of a composite; zero if its whole tree has no pending pods.
func (ts *Trees) compositeRow(name types.NamespacedName, t *treeView) Composite {
	tree := ts.byName[name]
	if !t.waits || len(tree.groups)+len(tree.composites) == 0 {
		return Composite{}
	}
	row := Composite{Key: name.String(), Groups: len(tree.groups) + len(tree.composites)}
	if parent := tree.parent(); parent.Name != "" {
		row.Parent = parent.String()
	}
	if tree.info == nil {
		row.Message = "CompositePodGroup " + name.Name + " does not exist"
		return row
	}

	row.Needed = tree.info.needed
	if t.rootless {
		row.Message = "it is in a tree without a root: CompositePodGroups name each other as parents"
		return row
	}
	row.Placed = ts.countChildren(name, (*group).isPlaced)
	row.Message = ts.whyCompositeWaits(name)
	return row
}

// whyCompositeWaits returns the unmet condition for which a composite waits. It returns an empty
// string if the condition is unknown, or if the composite does not wait. The tree must have a root.
func (ts *Trees) whyCompositeWaits(name types.NamespacedName) string {
	tree := ts.byName[name]
	if tree.info.message != "" {
		return tree.info.message
	}
	least := ts.leastChildren(name)
	if ready := ts.countChildren(name, (*group).isComplete); ready < least {
		return fmt.Sprintf("groups needed at once: %d; groups with all pods: %d", least, ready)
	}

	for _, below := range sortedNamespaced(tree.groups) {
		if g := ts.groups[below]; !g.isPlaced() {
			if why := g.groupRow(below).Message; why != "" {
				return "PodGroup " + below.Name + ": " + why
			}
		}
	}
	for _, below := range sortedNamespaced(tree.composites) {
		if !ts.holds(below, (*group).isPlaced) {
			if why := ts.whyCompositeWaits(below); why != "" {
				return "CompositePodGroup " + below.Name + ": " + why
			}
		}
	}
	return ""
}

// countChildren counts the children of a composite that satisfy a predicate of groups. A composite
// child satisfies the predicate if its required number of children do. The tree must have a root,
// so that all composites in it have been observed.
func (ts *Trees) countChildren(name types.NamespacedName, is func(*group) bool) (count int) {
	for below := range ts.byName[name].groups {
		if is(ts.groups[below]) {
			count++
		}
	}
	for below := range ts.byName[name].composites {
		if ts.holds(below, is) {
			count++
		}
	}
	return count
}

func (ts *Trees) holds(name types.NamespacedName, is func(*group) bool) bool {
	return ts.countChildren(name, is) >= ts.leastChildren(name)
}

// leastChildren returns the number of children that a composite needs simultaneously. It is one if
// a descendant group has been scheduled and runs.
func (ts *Trees) leastChildren(name types.NamespacedName) int {
	if slices.ContainsFunc(ts.readTree(name).groups, func(below types.NamespacedName) bool { return ts.groups[below].runs() }) {
		return 1
	}
	return max(1, ts.byName[name].info.needed)
}
