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

// CompositeInfo is what is kept of a CompositePodGroup. It does not change.
type CompositeInfo struct {
	name    types.NamespacedName
	parent  types.NamespacedName // without a name: it is a root
	needed  int                  // groups that are placed together or not at all; 0: not a gang
	message string               // of the condition initiallyScheduled, unless it is true
}

// CompositeOf takes from an object what is kept of it.
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

// parentOf is the CompositePodGroup that an object names as its parent.
func parentOf(namespace string, name *string) (parent types.NamespacedName) {
	if name == nil {
		return parent
	}
	return types.NamespacedName{Namespace: namespace, Name: internString(*name)}
}

// composite is a CompositePodGroup that was seen, or that another object names as its parent.
type composite struct {
	info               *CompositeInfo // nil: not seen
	list               uint32         // the last list that showed it
	groups, composites map[types.NamespacedName]bool
	shown              Composite // zero: not at all
}

// CompositesListing begins a list of CompositePodGroups: what is not seen until CompositesListed is
// gone.
func (c *Cluster) CompositesListing() { c.compositeList++ }

// CompositesListed ends it. Before the first list no group is shown in a tree: an API without
// CompositePodGroups has no such list.
func (c *Cluster) CompositesListed() {
	for name, tree := range c.composites {
		if tree.info != nil && tree.list != c.compositeList {
			c.CompositeGone(name)
		}
	}
	if !c.nested {
		c.nested = true
		for name := range c.composites {
			c.dirtyComposites[name] = true
		}
	}
}

// CompositeSeen applies a CompositePodGroup, new or changed.
func (c *Cluster) CompositeSeen(info *CompositeInfo) {
	tree := c.compositeNamed(info.name)
	if tree.info != nil && tree.info.parent.Name != "" {
		delete(c.compositeNamed(tree.info.parent).composites, info.name)
	}
	if info.parent.Name != "" {
		c.compositeNamed(info.parent).composites[info.name] = true
	}
	tree.info, tree.list = info, c.compositeList
}

// CompositeGone removes a CompositePodGroup.
func (c *Cluster) CompositeGone(name types.NamespacedName) {
	tree := c.composites[name]
	if tree == nil || tree.info == nil {
		return
	}
	c.dirtyComposites[name] = true
	if parent := tree.info.parent; parent.Name != "" {
		delete(c.compositeNamed(parent).composites, name)
	}
	tree.info = nil
}

// compositeNamed returns a composite that is about to change, and marks it.
func (c *Cluster) compositeNamed(name types.NamespacedName) *composite {
	tree := c.composites[name]
	if tree == nil {
		tree = &composite{groups: map[types.NamespacedName]bool{}, composites: map[types.NamespacedName]bool{}}
		c.composites[name] = tree
	}
	c.dirtyComposites[name] = true
	return tree
}

// setGroupInfo has a group be a child of the composite that it names now, and of no other.
// showTrees then finds its tree.
func (c *Cluster) setGroupInfo(name types.NamespacedName, info *GroupInfo) {
	g := c.groupNamed(name)
	if was := g.parent(); was.Name != "" {
		delete(c.compositeNamed(was).groups, name)
	}
	g.info, g.tree, g.treeWaits = info, "", false
	if is := g.parent(); is.Name != "" {
		c.compositeNamed(is).groups[name] = true
	}
}

// showTrees brings the rows of all composites up to date in whose trees something may have changed,
// and marks the groups there. A tree is shown as a whole while a pod in it waits.
func (c *Cluster) showTrees(set *Set[Composite]) {
	for name := range c.dirtyGroups {
		if parent := c.groups[name].parent(); parent.Name != "" {
			c.dirtyComposites[parent] = true
		}
	}
	if !c.nested {
		return
	}

	tops := map[types.NamespacedName]bool{}
	for name := range c.dirtyComposites {
		tops[c.topOf(name)] = true
	}
	for top := range tops {
		t := c.readTree(top)
		for _, name := range t.groups {
			g := c.groups[name]
			g.tree, g.treeWaits = top.String(), t.waits
			c.dirtyGroups[name] = true
		}
		for _, name := range t.composites {
			delete(c.dirtyComposites, name)
			c.showComposite(name, c.compositeRow(name, t), set)
		}
	}
}

// showComposite shows a row, or none if it is zero.
func (c *Cluster) showComposite(name types.NamespacedName, row Composite, set *Set[Composite]) {
	tree := c.composites[name]
	switch {
	case row == tree.shown:
	case row == Composite{}:
		set.Gone = append(set.Gone, tree.shown.Key)
	default:
		set.Rows = append(set.Rows, row)
	}
	tree.shown = row
	// Neither an object nor a child names it any more.
	if tree.info == nil && len(tree.groups)+len(tree.composites) == 0 {
		delete(c.composites, name)
	}
}

// topOf is the root of the tree that a composite is in. If there is none, since composites name
// each other as parents, it is the first of these by name.
func (c *Cluster) topOf(name types.NamespacedName) types.NamespacedName {
	seen := map[types.NamespacedName]bool{}
	for !seen[name] {
		seen[name] = true
		parent := c.composites[name].parent()
		if parent.Name == "" {
			return name
		}
		name = parent
	}

	first := name
	for next := c.composites[name].parent(); next != name; next = c.composites[next].parent() {
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
	waits              bool // a pod in it
	rootless           bool
}

// readTree lists what is below a composite, and itself.
func (c *Cluster) readTree(top types.NamespacedName) *treeView {
	t := &treeView{rootless: c.composites[top].parent().Name != ""}
	seen := map[types.NamespacedName]bool{}
	var read func(name types.NamespacedName)
	read = func(name types.NamespacedName) {
		if seen[name] {
			return
		}
		seen[name] = true
		t.composites = append(t.composites, name)
		for _, group := range sortedNamespaced(c.composites[name].groups) {
			t.groups = append(t.groups, group)
			t.waits = t.waits || c.groups[group].waits()
		}
		for _, below := range sortedNamespaced(c.composites[name].composites) {
			read(below)
		}
	}
	read(top)
	return t
}

func sortedNamespaced(names map[types.NamespacedName]bool) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(names), func(a, b types.NamespacedName) int { return cmp.Compare(a.Name, b.Name) })
}

// compositeRow is the row of a composite; zero if nothing in its tree waits.
func (c *Cluster) compositeRow(name types.NamespacedName, t *treeView) Composite {
	tree := c.composites[name]
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
	row.Placed = c.countChildren(name, (*group).isPlaced)
	row.Message = c.whyCompositeWaits(name)
	return row
}

// whyCompositeWaits is what a tree with a root waits for; empty if that is not known, or nothing.
func (c *Cluster) whyCompositeWaits(name types.NamespacedName) string {
	tree := c.composites[name]
	if tree.info.message != "" {
		return tree.info.message
	}
	least := c.leastChildren(name)
	if ready := c.countChildren(name, (*group).isComplete); ready < least {
		return fmt.Sprintf("%d groups are needed at once; %d have all their pods", least, ready)
	}
	for _, below := range sortedNamespaced(tree.groups) {
		if g := c.groups[below]; !g.isPlaced() {
			if why := g.groupRow(below).Message; why != "" {
				return "PodGroup " + below.Name + ": " + why
			}
		}
	}
	for _, below := range sortedNamespaced(tree.composites) {
		if !c.holds(below, (*group).isPlaced) {
			if why := c.whyCompositeWaits(below); why != "" {
				return "CompositePodGroup " + below.Name + ": " + why
			}
		}
	}
	return ""
}

// countChildren counts the children of a composite of which something is true: of a group or, in a
// composite, of as many children as it asks for. The tree has a root, so all composites in it are
// known.
func (c *Cluster) countChildren(name types.NamespacedName, is func(*group) bool) (count int) {
	for below := range c.composites[name].groups {
		if is(c.groups[below]) {
			count++
		}
	}
	for below := range c.composites[name].composites {
		if c.holds(below, is) {
			count++
		}
	}
	return count
}

func (c *Cluster) holds(name types.NamespacedName, is func(*group) bool) bool {
	return c.countChildren(name, is) >= c.leastChildren(name)
}

// leastChildren is how many children of a composite are needed at once: one, if a group below has
// been scheduled and runs.
func (c *Cluster) leastChildren(name types.NamespacedName) int {
	for _, below := range c.readTree(name).groups {
		if c.groups[below].runs() {
			return 1
		}
	}
	return max(1, c.composites[name].info.needed)
}
