// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/ui/model"
)

// treePage holds the groups and composites of a page after all changes.
type treePage struct {
	*testing.T
	c          *model.Cluster
	groups     map[string]model.Group
	composites map[string]model.Composite
}

func newTreePage(t *testing.T) *treePage {
	p := &treePage{T: t, c: model.New(), groups: map[string]model.Group{}, composites: map[string]model.Composite{}}
	p.c.GroupsListing()
	p.c.GroupsListed()
	p.c.Trees.Listing()
	p.c.Trees.Listed()
	return p
}

func (p *treePage) apply(d *model.Delta) {
	if d != nil && d.Groups != nil {
		for _, row := range d.Groups.Rows {
			p.groups[row.Key] = row
		}
		for _, key := range d.Groups.Gone {
			delete(p.groups, key)
		}
	}
	if d != nil && d.Composites != nil {
		for _, row := range d.Composites.Rows {
			p.composites[row.Key] = row
		}
		for _, key := range d.Composites.Gone {
			delete(p.composites, key)
		}
	}
}

// lines draws the trees like the page: descendants of a composite are indented.
func (p *treePage) lines() string {
	var lines []string
	short := func(key string) string { return strings.TrimPrefix(key, "default/") }
	var draw func(parent, indent string)
	draw = func(parent, indent string) {
		for _, key := range slices.Sorted(maps.Keys(p.composites)) {
			if t := p.composites[key]; t.Parent == parent && len(indent) < 8 {
				lines = append(lines, fmt.Sprintf("%s%s %d of %d groups, needs %d: %s", indent, short(key), t.Placed, t.Groups, t.Needed, t.Message))
				draw(key, indent+"  ")
			}
		}
		for _, key := range slices.Sorted(maps.Keys(p.groups)) {
			if g := p.groups[key]; g.Parent == parent {
				lines = append(lines, fmt.Sprintf("%s%s in %q: %d of %d pods, needs %d: %s", indent, short(key), short(g.Tree), g.Placed, g.Pods, g.Needed, g.Message))
			}
		}
	}
	draw("", "")
	return strings.Join(lines, "\n")
}

func (p *treePage) check(step string, want ...string) {
	p.Helper()
	p.apply(p.c.Changes(noon))
	if got := p.lines(); got != strings.Join(want, "\n") {
		p.Errorf("%s:\n%s\nwant\n%s", step, got, strings.Join(want, "\n"))
	}
	fresh := &treePage{T: p.T, groups: map[string]model.Group{}, composites: map[string]model.Composite{}}
	fresh.apply(p.c.State(noon))
	if got := fresh.lines(); got != strings.Join(want, "\n") {
		p.Errorf("%s: the state says\n%s\nwant\n%s", step, got, strings.Join(want, "\n"))
	}
}

func composite(name, parent string, needed int32) *model.CompositeInfo {
	c := &schedulingv1alpha3.CompositePodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if needed > 0 {
		c.Spec.SchedulingPolicy.Gang = &schedulingv1alpha3.CompositeGangSchedulingPolicy{MinGroupCount: needed}
	}
	if parent != "" {
		c.Spec.ParentCompositePodGroupName = &parent
	}
	return model.CompositeOf(c)
}

// leaf returns a PodGroup in a composite. scheduled is the status of its condition, nil if absent.
func leaf(name, parent string, needed int32, scheduled *bool, message string) *model.GroupInfo {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	g.Spec.ParentCompositePodGroupName = &parent
	if needed > 0 {
		g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: needed}
	}
	if scheduled != nil {
		g.Status.Conditions = []metav1.Condition{{
			Type: schedulingv1beta1.PodGroupInitiallyScheduled, Message: message,
			Status: map[bool]metav1.ConditionStatus{false: metav1.ConditionFalse, true: metav1.ConditionTrue}[*scheduled],
		}}
	}
	return model.GroupOf(g)
}

// TestATreeThatWaits verifies that a whole tree is shown while one of its pods waits, with the
// number of satisfied children of each composite and the reason for waiting.
func TestATreeThatWaits(t *testing.T) {
	p := newTreePage(t)
	see(p.c, noon, member(pending("a", ""), "lead"))
	p.c.GroupSeen(leaf("lead", "train", 1, nil, ""))
	p.check("no composite",
		"train 0 of 1 groups, needs 0: CompositePodGroup train does not exist",
		`  lead in "train": 0 of 1 pods, needs 1: `)

	p.c.Trees.Seen(composite("train", "", 2))
	p.check("too few groups",
		"train 0 of 1 groups, needs 2: groups needed at once: 2; groups with all pods: 1",
		`  lead in "train": 0 of 1 pods, needs 1: `)

	p.c.Trees.Seen(composite("workers", "train", 0))
	p.c.GroupSeen(leaf("west", "workers", 2, nil, ""))
	p.c.GroupSeen(leaf("east", "workers", 0, nil, ""))
	see(p.c, noon, member(pending("b", ""), "west"))
	p.check("the groups of a composite lack pods",
		"train 0 of 2 groups, needs 2: groups needed at once: 2; groups with all pods: 1",
		"  workers 0 of 2 groups, needs 0: groups needed at once: 1; groups with all pods: 0",
		`    east in "train": 0 of 0 pods, needs 0: it has no pods yet`,
		`    west in "train": 0 of 1 pods, needs 2: 2 pods are needed at once; it has 1`,
		`  lead in "train": 0 of 1 pods, needs 1: `)

	see(p.c, noon, member(pending("c", ""), "west"))
	p.c.GroupSeen(leaf("west", "workers", 2, new(false), "1 of 2 pods fit"))
	p.check("tried",
		"train 0 of 2 groups, needs 2: CompositePodGroup workers: PodGroup east: it has no pods yet",
		"  workers 0 of 2 groups, needs 0: PodGroup east: it has no pods yet",
		`    east in "train": 0 of 0 pods, needs 0: it has no pods yet`,
		`    west in "train": 0 of 2 pods, needs 2: 1 of 2 pods fit`,
		`  lead in "train": 0 of 1 pods, needs 1: `)

	p.c.GroupGone(types.NamespacedName{Namespace: "default", Name: "east"})
	see(p.c, noon, member(pod("a", "node-1"), "lead"))
	p.check("one of two is placed",
		"train 1 of 2 groups, needs 2: CompositePodGroup workers: PodGroup west: 1 of 2 pods fit",
		"  workers 0 of 1 groups, needs 0: PodGroup west: 1 of 2 pods fit",
		`    west in "train": 0 of 2 pods, needs 2: 1 of 2 pods fit`,
		`  lead in "train": 1 of 1 pods, needs 1: `)

	see(p.c, noon, member(pod("b", "node-1"), "west"), member(pod("c", "node-1"), "west"))
	p.check("all placed")
	see(p.c, noon, member(pending("d", ""), "lead"))
	p.c.GroupSeen(leaf("lead", "train", 1, new(true), ""))
	p.check("one more, of a tree that runs",
		"train 2 of 2 groups, needs 2: ",
		"  workers 1 of 1 groups, needs 0: ",
		`    west in "train": 2 of 2 pods, needs 2: 1 of 2 pods fit`,
		`  lead in "train": 1 of 2 pods, needs 1: `)

	p.c.Trees.Gone(types.NamespacedName{Namespace: "default", Name: "workers"})
	p.check("the composite between is gone, and its group is in a tree of its own",
		"train 1 of 1 groups, needs 2: ",
		`  lead in "train": 1 of 2 pods, needs 1: `)
	p.c.Trees.Listing()
	p.c.Trees.Listed()
	p.check("listed without",
		"train 0 of 1 groups, needs 0: CompositePodGroup train does not exist",
		`  lead in "train": 1 of 2 pods, needs 1: `)
	p.c.PodGone(noon, types.UID("uid-d"))
	p.check("nobody waits")
}

// TestATreeWithoutARoot verifies that composites in a cycle of parents, which have no root, are
// shown with the reason that they wait forever.
func TestATreeWithoutARoot(t *testing.T) {
	p := newTreePage(t)
	p.c.Trees.Seen(composite("b", "a", 0))
	p.c.Trees.Seen(composite("a", "b", 0))
	p.c.Trees.Seen(composite("c", "b", 0))
	p.c.GroupSeen(leaf("g", "c", 0, nil, ""))
	see(p.c, noon, member(pending("x", ""), "g"))
	p.apply(p.c.Changes(noon))
	if row := p.groups["default/g"]; row.Tree != "default/a" || row.Parent != "default/c" {
		t.Errorf("%+v", row)
	}
	for _, name := range []string{"a", "b", "c"} {
		want := "it is in a tree without a root: CompositePodGroups name each other as parents"
		if row := p.composites["default/"+name]; row.Message != want {
			t.Errorf("%s: %+v", name, row)
		}
	}
	p.c.Trees.Seen(composite("a", "", 0))
	p.check("one lets go",
		"a 0 of 1 groups, needs 0: ",
		"  b 0 of 1 groups, needs 0: ",
		"    c 0 of 1 groups, needs 0: ",
		`      g in "a": 0 of 1 pods, needs 0: `)
	p.c.Trees.Seen(composite("a", "a", 0))
	p.apply(p.c.Changes(noon))
	if row := p.composites["default/a"]; row.Parent != "default/a" || row.Message == "" {
		t.Errorf("its own parent: %+v", row)
	}
}

// TestWithoutCompositesGroupsAreInNoTree verifies that a group with a composite as its parent is
// shown like any other group if the API does not serve CompositePodGroups.
func TestWithoutCompositesGroupsAreInNoTree(t *testing.T) {
	p := &treePage{T: t, c: model.New(), groups: map[string]model.Group{}, composites: map[string]model.Composite{}}
	p.c.GroupsListing()
	p.c.GroupSeen(leaf("g", "train", 2, nil, ""))
	p.c.GroupsListed()
	see(p.c, noon, member(pending("x", ""), "g"))
	p.check("not served", `g in "": 0 of 1 pods, needs 2: 2 pods are needed at once; it has 1`)
	p.c.Trees.Listing()
	p.c.Trees.Listed()
	p.check("served",
		"train 0 of 1 groups, needs 0: CompositePodGroup train does not exist",
		`  g in "train": 0 of 1 pods, needs 2: 2 pods are needed at once; it has 1`)
	p.c.GroupSeen(gang("g", 1, ""))
	p.check("its own now", `g in "": 0 of 1 pods, needs 1: `)
}

// TestTreesAreWhatTheyAre verifies that the rows do not depend on history: after any changes they
// equal the rows of a cluster that observes only the final objects.
func TestTreesAreWhatTheyAre(t *testing.T) {
	for seed := range uint64(60) {
		w := newRandomTrees(seed)
		p := newTreePage(t)
		for step := range 60 {
			w.change(p.c)
			p.apply(p.c.Changes(noon))
			fresh := newTreePage(t)
			w.showAll(fresh.c)
			fresh.apply(fresh.c.Changes(noon))
			if got, want := fmt.Sprint(p.groups, p.composites), fmt.Sprint(fresh.groups, fresh.composites); got != want {
				t.Fatalf("seed %d, step %d:\n%s\nwant\n%s", seed, step, got, want)
			}
		}
	}
}

// randomTrees holds the existing objects: composites, groups and pods.
type randomTrees struct {
	rng        *rand.Rand
	composites map[string]*model.CompositeInfo
	groups     map[string]*model.GroupInfo
	pods       map[string]*v1.Pod
}

func newRandomTrees(seed uint64) *randomTrees {
	return &randomTrees{
		rng:        rand.New(rand.NewPCG(seed, 1)),
		composites: map[string]*model.CompositeInfo{}, groups: map[string]*model.GroupInfo{}, pods: map[string]*v1.Pod{},
	}
}

func (w *randomTrees) change(c *model.Cluster) {
	name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("%c", 'a'+rune(w.rng.IntN(4)))}
	parent := append(strings.Split("abcd", ""), "")[w.rng.IntN(5)]
	switch w.rng.IntN(8) {
	case 0, 1:
		w.composites[name.Name] = composite(name.Name, parent, int32(w.rng.IntN(3)))
		c.Trees.Seen(w.composites[name.Name])
	case 2:
		delete(w.composites, name.Name)
		c.Trees.Gone(name)
	case 3, 4:
		if parent == "" {
			w.groups[name.Name] = gang(name.Name, int32(1+w.rng.IntN(2)), "")
		} else {
			w.groups[name.Name] = leaf(name.Name, parent, int32(w.rng.IntN(3)), new(w.rng.IntN(2) == 0), "why")
		}
		c.GroupSeen(w.groups[name.Name])
	case 5:
		delete(w.groups, name.Name)
		c.GroupGone(name)
	case 6:
		p := pending("p"+parent, "")
		if w.rng.IntN(2) == 0 {
			p = pod("p"+parent, "node-1")
		}
		w.pods[p.Name] = member(p, name.Name)
		see(c, noon, w.pods[p.Name])
	case 7:
		if p := w.pods["p"+parent]; p != nil {
			delete(w.pods, p.Name)
			c.PodGone(noon, p.UID)
		}
	}
}

func (w *randomTrees) showAll(c *model.Cluster) {
	for _, info := range w.composites {
		c.Trees.Seen(info)
	}
	for _, info := range w.groups {
		c.GroupSeen(info)
	}
	for _, p := range w.pods {
		see(c, noon, p)
	}
}
