// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// TestUndoGivesBackTheWorld verifies that undoing random changes, nested like trials, restores the
// former world, with the identical objects and pods of the cluster.
func TestUndoGivesBackTheWorld(t *testing.T) {
	for seed := range uint64(40) {
		c := newCourse(seed)
		c.w.Cluster()
		c.change(20)
		c.undoTrials(t, 3)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// undoTrials tries changes, and trials within them, and undoes all of them.
func (c *course) undoTrials(t *testing.T, depth int) {
	before, known := describe(c.w, true), c.reference()
	for range 2 {
		mark := c.w.Mark()
		c.change(c.IntN(30))
		if depth > 0 {
			c.undoTrials(t, depth-1)
		}
		c.change(c.IntN(3))
		c.w.Undo(mark)
		c.objects = known.clone()
		if after := describe(c.w, true); after != before {
			t.Errorf("the world is another one:\n%s", difference(before, after))
		}
		if n := c.w.Cluster().Recount(); n != 0 {
			t.Errorf("the sums of %d nodes are wrong", n)
		}
	}
}

// TestTrialsOnAnothersCluster verifies that trials on a foreign cluster leave it unchanged, and see
// the changes reported by its owner.
func TestTrialsOnAnothersCluster(t *testing.T) {
	for seed := range uint64(30) {
		c := newCourse(seed)
		owner, before := c.w, describe(c.w, true)
		over := world.Over(owner.Cluster())
		for _, object := range c.objects {
			over.Follow(object, false)
		}
		c.w = over
		if c.undoTrials(t, 2); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		for key, object := range c.objects {
			over.Follow(object, true)
			delete(c.objects, key)
		}
		for object := range over.Objects() {
			t.Fatalf("seed %d: %s is left", seed, keyOf(object))
		}
		if after := describe(owner, true); after != before {
			t.Fatalf("seed %d: the cluster is another one:\n%s", seed, difference(before, after))
		}
	}
}

// TestForksAreWorldsOfTheirOwn verifies that after any history a world and its cluster match its
// objects, and that forks changed concurrently do not see each other's changes.
func TestForksAreWorldsOfTheirOwn(t *testing.T) {
	for seed := range uint64(40) {
		courses := []*course{newCourse(seed)}
		for range 12 {
			c := courses[int(seed)%len(courses)]
			if len(courses) < 5 {
				f := &course{rand.New(rand.NewPCG(seed, uint64(len(courses)+1))), c.w.Fork(), c.reference()}
				if seed%2 == 0 { // otherwise the cluster is built from the changed world
					f.w.Cluster()
				}
				courses = append(courses, f)
			}
			var changing sync.WaitGroup
			for _, c := range courses {
				changing.Go(func() { c.change(c.IntN(40)) })
			}
			changing.Wait()
		}
		for _, c := range courses {
			got, want := describe(c.w, false), describe(world.Open(c.objects.list()), false)
			if got != want {
				t.Fatalf("seed %d: not the world of its objects:\n%s", seed, difference(want, got))
			}
		}
	}
}

func TestUndoAfterAKeptMark(t *testing.T) {
	c := newCourse(1)
	outer := c.w.Mark()
	before := describe(c.w, true)
	c.w.Mark() // never undone
	c.change(10)
	inner := c.w.Mark()
	between := describe(c.w, true)
	c.change(10)
	c.w.Undo(inner)
	if got := describe(c.w, true); got != between {
		t.Errorf("the inner mark leads elsewhere:\n%s", difference(between, got))
	}
	c.w.Undo(outer)
	if got := describe(c.w, true); got != before {
		t.Errorf("the outer mark leads elsewhere:\n%s", difference(before, got))
	}
}

// TestNotesOfOthers verifies that notes for derived state are undone in order, and are not recorded
// without a mark.
func TestNotesOfOthers(t *testing.T) {
	w := world.Open([]metav1.Object{node("a", 0)})
	var lines []string
	say := func(text string) func() {
		return func() {
			_, there := world.Get[*v1.Node](w, "", "b")
			lines = append(lines, fmt.Sprintf("%s %t", text, there))
		}
	}
	w.Note(say("none"))
	mark := w.Mark()
	w.Note(say("first"))
	w.Put(node("b", 0))
	w.Note(say("second"))
	w.Undo(mark)
	w.Undo(mark)
	if want := []string{"second true", "first false"}; !slices.Equal(lines, want) {
		t.Errorf("said %q, want %q", lines, want)
	}
}

// TestAClusterThatIsBuiltInATrial verifies that a cluster built within a trial includes the trial's
// changes, and is discarded when they are undone.
func TestAClusterThatIsBuiltInATrial(t *testing.T) {
	w := world.Open([]metav1.Object{node("a", 0)})
	mark := w.Mark()
	w.Put(node("b", 0))
	if w.Cluster().Node("b") == nil {
		t.Error("the cluster does not have what is tried")
	}
	w.Undo(mark)
	if w.Cluster().Node("b") != nil || w.Cluster().Node("a") == nil {
		t.Error("the cluster is not as before the trial")
	}
}

func TestPodsWithoutUIDGetOne(t *testing.T) {
	p := pod("web", "ns", "", "a")
	w := world.Open([]metav1.Object{node("a", 0), p})
	if w.Cluster().Pod("ns/web") == nil || p.UID != "" {
		t.Error("the pod is not on its node, or was changed itself")
	}
}

// TestAllIsAsItWas verifies that a list stays the same while the world changes.
func TestAllIsAsItWas(t *testing.T) {
	w := world.Open([]metav1.Object{pod("a", "ns", "1", ""), pod("c", "ns", "2", "")})
	var names []string
	for p := range world.All[*v1.Pod](w) {
		w.Put(pod("b", "ns", "3", ""))
		w.Delete(p)
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"a", "c"}) {
		t.Errorf("listed %q", names)
	}
	if left := slices.Collect(world.All[*v1.Pod](w)); len(left) != 1 || left[0].Name != "b" {
		t.Errorf("left: %v", left)
	}
}

// course is a world changing at random, with a plain list of its expected content.
type course struct {
	*rand.Rand
	w       *world.World
	objects objects
}

type objects map[string]metav1.Object

func (o objects) clone() objects {
	c := objects{}
	for key, object := range o {
		c[key] = object
	}
	return c
}

func (o objects) list() (list []metav1.Object) {
	for _, object := range o {
		list = append(list, object)
	}
	return list
}

func keyOf(object metav1.Object) string {
	return fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), object.GetName())
}

func newCourse(seed uint64) *course {
	c := &course{rand.New(rand.NewPCG(seed, 1)), world.Open(nil), objects{}}
	var list []metav1.Object
	for range 40 {
		object := c.object()
		c.objects[keyOf(object)] = object
	}
	list = c.objects.list()
	c.w = world.Open(list)
	return c
}

func (c *course) reference() objects { return c.objects.clone() }

// object generates an object of some kind, often with an existing name.
func (c *course) object() metav1.Object {
	name := fmt.Sprint(c.IntN(9))
	meta := metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(fmt.Sprint("u", name, c.IntN(2)))}
	switch c.IntN(10) {
	case 0, 1:
		return node("n"+name, c.IntN(3))
	case 2:
		return &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{}}}
	case 3:
		return &appsv1.Deployment{ObjectMeta: meta}
	case 4:
		return &policyv1.PodDisruptionBudget{ObjectMeta: meta}
	case 5:
		return &v1.PersistentVolumeClaim{ObjectMeta: meta}
	}
	name = fmt.Sprint("p", c.IntN(30))
	p := pod(name, "ns", types.UID(fmt.Sprint(name, "-", c.IntN(2))), "")
	switch c.IntN(5) {
	case 0:
		p.Status.NominatedNodeName = fmt.Sprint("n", c.IntN(9))
	case 1:
		p.Status.Phase = v1.PodSucceeded
	default:
		p.Spec.NodeName = fmt.Sprint("n", c.IntN(9))
	}
	if c.IntN(3) > 0 {
		yes, of := true, fmt.Sprint(c.IntN(9))
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: of, UID: types.UID("u" + of + "0"), Controller: &yes}}
	}
	p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse(fmt.Sprint(1 + c.IntN(3)))
	return p
}

// change makes random changes of every kind.
func (c *course) change(many int) {
	for range many {
		object := c.object()
		switch c.IntN(4) {
		case 0:
			c.w.Delete(object)
			delete(c.objects, keyOf(object))
		case 1:
			c.move()
		default:
			c.w.Put(object)
			c.objects[keyOf(object)] = object
		}
	}
}

// move places a nominated pod, removes a placed one, or moves it.
func (c *course) move() {
	nodes := c.w.Cluster().SortedNodes()
	if len(nodes) == 0 {
		return
	}
	from, to := nodes[c.IntN(len(nodes))], nodes[c.IntN(len(nodes))]
	if len(from.Nominated) > 0 {
		p := from.Nominated[0]
		object, _ := world.Get[*v1.Pod](c.w, "ns", p.Name())
		c.w.Place(object, p, to)
		c.objects[keyOf(object)], _ = world.Get[*v1.Pod](c.w, "ns", p.Name())
		return
	}
	if len(from.Pods) == 0 {
		return
	}
	p := slices.MinFunc(from.Pods, func(a, b *cluster.Pod) int { return strings.Compare(a.Name(), b.Name()) })
	object, _ := world.Get[*v1.Pod](c.w, "ns", p.Name())
	c.w.Remove(p)
	delete(c.objects, keyOf(object))
	if c.IntN(2) == 0 {
		c.w.Place(object, p, to)
		c.objects[keyOf(object)], _ = world.Get[*v1.Pod](c.w, "ns", p.Name())
	}
}

func node(name string, taints int) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("64"), v1.ResourcePods: resource.MustParse("110")}
	for i := range taints {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: fmt.Sprint(i), Effect: v1.TaintEffectNoSchedule})
	}
	return n
}

func pod(name, namespace string, uid types.UID, on string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid},
		Spec: v1.PodSpec{NodeName: on, Containers: []v1.Container{{Name: "c",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}}},
	}
}

// describe lists the whole observable state of a world. same distinguishes identical objects, and
// pods of the cluster, from equal ones.
func describe(w *world.World, same bool) string {
	var b strings.Builder
	objectsOf[*v1.Node](&b, w)
	objectsOf[*v1.Pod](&b, w)
	objectsOf[*appsv1.ReplicaSet](&b, w)
	objectsOf[*appsv1.Deployment](&b, w)
	objectsOf[*policyv1.PodDisruptionBudget](&b, w)
	objectsOf[*v1.PersistentVolumeClaim](&b, w)

	var workloads []string
	for l := range w.Workloads().All() {
		workloads = append(workloads, fmt.Sprintf("workload %s %p\n", l.Ref(), l.Object))
		for _, p := range w.PodsOf(l.Owner()) {
			workloads = append(workloads, fmt.Sprintf("%s has %s %p\n", l.Ref(), p.Name, p))
		}
	}
	if !same { // the list of expected objects has no order of addition
		slices.Sort(workloads)
	}
	b.WriteString(strings.Join(workloads, ""))

	c := w.Cluster()
	for _, n := range c.SortedNodes() {
		fmt.Fprintf(&b, "node %s: %d taints, %d milliCPU, %d pods\n", n.Name, len(n.Taints.Taints), n.Requested.MilliCPU, c.Rooms[n.Index].Pods)
		for _, p := range slices.SortedFunc(slices.Values(n.Pods), func(a, b *cluster.Pod) int { return strings.Compare(a.Name(), b.Name()) }) {
			fmt.Fprintf(&b, "  %s %s on %s\n", p.Name(), p.UID(), p.NodeName)
			if same {
				fmt.Fprintf(&b, "  is %p\n", p)
			}
		}
		for _, p := range slices.SortedFunc(slices.Values(n.Nominated), func(a, b *cluster.Pod) int { return strings.Compare(a.Name(), b.Name()) }) {
			fmt.Fprintf(&b, "  nominated %s %s\n", p.Name(), p.UID())
		}
	}
	fmt.Fprintf(&b, "%d pods, %d nominations\n", c.Pods(), c.Nominations())
	for _, budget := range c.Budgets.All() {
		fmt.Fprintf(&b, "budget %s %p\n", budget.Name, budget)
	}
	for _, claim := range c.Claims.All() {
		fmt.Fprintf(&b, "claim %s %p\n", claim.Name, claim)
	}
	return b.String()
}

func objectsOf[T metav1.Object](b *strings.Builder, w *world.World) {
	for object := range world.All[T](w) {
		found, _ := world.Get[T](w, object.GetNamespace(), object.GetName())
		fmt.Fprintf(b, "%s %p, found %p, of %s\n", keyOf(object), any(object), any(found), rules.OwnerOf(object).UID)
	}
}

// difference returns the lines found in only one of two descriptions.
func difference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	var lines []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			lines = append(lines, "+ "+line)
		}
	}
	if len(lines) == 0 && !reflect.DeepEqual(a, b) {
		return "the same lines in another order"
	}
	return strings.Join(lines, "\n")
}
