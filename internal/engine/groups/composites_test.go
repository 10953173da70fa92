// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package groups_test

import (
	"slices"
	"testing"
	"time"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

func composite(name, parent string) *groups.CompositePodGroup {
	c := &groups.CompositePodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	if parent != "" {
		c.Spec.ParentCompositePodGroupName = &parent
	}
	return c
}

func child(name, parent string, age time.Duration) *groups.PodGroup {
	g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	g.CreationTimestamp = metav1.NewTime(time.Unix(1000, 0).Add(-age))
	if parent != "" {
		g.Spec.ParentCompositePodGroupName = &parent
	}
	return g
}

func namesOf(list []*groups.Group) (names []string) {
	for _, g := range list {
		names = append(names, g.Name.Name)
	}
	return names
}

// TestTreesGrowInAnyOrder verifies that a tree is known once all ancestors of a group have
// appeared, in any order; children are listed by age, then by name; and deleted objects are
// dropped.
func TestTreesGrowInAnyOrder(t *testing.T) {
	s := groups.New()
	s.Nested = true
	g := s.SetObject(child("young", "sub", 0))
	if g.Root() != nil || len(g.Tree()) != 1 {
		t.Errorf("without its parent the group has root %v, tree %v", g.Root(), namesOf(g.Tree()))
	}
	s.SetComposite(composite("sub", "root"))
	old := s.SetObject(child("old", "sub", time.Hour))
	if g.Root() != nil || !slices.Equal(namesOf(g.Tree()), []string{"old", "young"}) {
		t.Errorf("without its root the group has root %v, tree %v", g.Root(), namesOf(g.Tree()))
	}
	s.SetObject(child("aside", "root", 2*time.Hour))
	root := s.SetComposite(composite("root", ""))
	lone := s.SetObject(child("lone", "", 0))
	switch {
	case g.Root() != root || !slices.Equal(namesOf(g.Tree()), []string{"old", "young", "aside"}):
		t.Errorf("the group has root %v, tree %v", g.Root(), namesOf(g.Tree()))
	case !g.SharesTree(old) || g.SharesTree(lone) || lone.SharesTree(g) || !lone.SharesTree(lone) || lone.SharesTree(nil):
		t.Error("the wrong groups share a tree")
	}

	s.LoseComposite(cluster.Name{Namespace: "ns", Name: "root"})
	if g.Root() != nil {
		t.Error("the root is gone, and still is the root")
	}
	s.LoseComposite(cluster.Name{Namespace: "ns", Name: "sub"})
	for _, name := range []string{"young", "old", "aside", "lone"} {
		s.LoseObject(cluster.Name{Namespace: "ns", Name: name})
	}
	if len(s.Composites()) != 0 || len(s.Sorted()) != 0 {
		t.Errorf("%d composites and %d groups are left", len(s.Composites()), len(s.Sorted()))
	}
}

// TestAGroupAndACompositeMayHaveOneName verifies that PodGroups and CompositePodGroups may have the
// same name, as in the API (kubernetes#141864).
func TestAGroupAndACompositeMayHaveOneName(t *testing.T) {
	s := groups.New()
	s.Nested = true
	g := s.SetObject(child("same", "same", 0))
	other := s.SetObject(child("other", "same", time.Hour))
	root := s.SetComposite(composite("same", ""))
	if g.Root() != root || !slices.Equal(namesOf(g.Tree()), []string{"other", "same"}) || !slices.Equal(namesOf(root.Leaves()), []string{"other", "same"}) {
		t.Errorf("the group has root %v, tree %v", g.Root(), namesOf(g.Tree()))
	}
	s.LoseObject(g.Name)
	if other.Root() != root || !slices.Equal(namesOf(root.Leaves()), []string{"other"}) {
		t.Errorf("without the group, the other one has root %v, tree %v", other.Root(), namesOf(other.Tree()))
	}
	g = s.SetObject(child("same", "same", 0))
	s.LoseComposite(root.Name)
	if g.Root() != nil || s.Get(g.Name) != g {
		t.Errorf("without the composite, the group has root %v", g.Root())
	}
}

// TestCirclesHaveNoRoot verifies that composites that name each other as parents have no root.
func TestCirclesHaveNoRoot(t *testing.T) {
	s := groups.New()
	s.Nested = true
	g := s.SetObject(child("g", "one", 0))
	h := s.SetObject(child("h", "two", 0))
	s.SetComposite(composite("one", "two"))
	s.SetComposite(composite("two", "one"))
	switch {
	case g.Root() != nil:
		t.Error("a circle has a root")
	case !g.SharesTree(h) || !slices.Equal(namesOf(g.Tree()), namesOf(h.Tree())):
		t.Errorf("two groups of a circle are in %v and %v", namesOf(g.Tree()), namesOf(h.Tree()))
	}
	s.SetComposite(composite("one", ""))
	if g.Root() == nil || g.Root() != h.Root() {
		t.Error("the circle is cut, and has no root")
	}
	self := s.SetObject(child("self", "self", 0))
	s.SetComposite(composite("self", "self"))
	if self.Root() != nil || len(self.Tree()) != 1 {
		t.Error("what is its own parent has a root")
	}
}

// TestTheRootSaysHowPodsCount verifies that the root determines priority and preemption policy, and
// that all pods below the highest composite disrupted as a whole leave together.
func TestTheRootSaysHowPodsCount(t *testing.T) {
	s := groups.New()
	s.Nested = true
	in := child("g", "sub", 0)
	in.Spec.Priority = new(int32(3))
	g := s.SetObject(in)
	other := s.SetObject(child("other", "sub", 0))
	s.SetObject(child("aside", "root", 0))
	if g.Priority() != 3 || g.Whole() || s.AnyWhole() {
		t.Errorf("before there is a root the group has priority %d, whole %t", g.Priority(), g.Whole())
	}
	sub := composite("sub", "root")
	sub.Spec.DisruptionMode = &schedulingv1alpha3.CompositeDisruptionMode{All: &schedulingv1alpha3.AllCompositeDisruptionMode{}}
	s.SetComposite(sub)
	root := composite("root", "")
	root.Spec.Priority, root.Spec.PreemptionPolicy = new(int32(7)), new(schedulingv1alpha3.PreemptNever)
	s.SetComposite(root)
	switch {
	case g.Priority() != 7 || string(g.PreemptionPolicy()) != string(schedulingv1beta1.PreemptNever):
		t.Errorf("the group has priority %d and policy %s", g.Priority(), g.PreemptionPolicy())
	case !g.Whole() || !other.Whole() || !s.AnyWhole() || !slices.Equal(namesOf(g.Together()), []string{"g", "other"}):
		t.Errorf("the group is whole: %t, and leaves with %v", g.Whole(), namesOf(g.Together()))
	}

	root = root.DeepCopy()
	root.Spec.DisruptionMode = sub.Spec.DisruptionMode
	s.SetComposite(root)
	if len(g.Together()) != 3 {
		t.Errorf("the group leaves with %v", namesOf(g.Together()))
	}
	s.LoseComposite(cluster.Name{Namespace: "ns", Name: "root"})
	s.LoseComposite(cluster.Name{Namespace: "ns", Name: "sub"})
	if s.AnyWhole() || g.Whole() {
		t.Error("nothing is disrupted as a whole any more")
	}
}

// TestWithoutTheGateThereAreNoTrees verifies that a PodGroup's reference to a parent is ignored.
func TestWithoutTheGateThereAreNoTrees(t *testing.T) {
	s := groups.New()
	if g := s.SetObject(child("g", "root", 0)); g.Parent() != nil || len(s.Composites()) != 0 {
		t.Error("the group has a parent")
	}
}
