// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// diverseCluster returns nodes of several sizes, some tainted, with pods of odd sizes on them.
func diverseCluster(rng *rand.Rand, nodes int) *cluster.Cluster {
	c := cluster.New()
	sizes := [][3]string{{"4", "16Gi", "30"}, {"32", "64Gi", "110"}, {"32", "64Gi", "4"}, {"31900m", "67000001Ki", "110"}, {"96", "384Gi", "250"}}[:1+rng.IntN(5)]
	for i := range nodes {
		size := sizes[rng.IntN(len(sizes))]
		n := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{
				v1.LabelHostname: fmt.Sprintf("node-%d", i), v1.LabelTopologyZone: fmt.Sprintf("z%d", i%3), "rack": fmt.Sprint(i / 4),
			}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse(size[0]), v1.ResourceMemory: resource.MustParse(size[1]), v1.ResourcePods: resource.MustParse(size[2]),
			}},
		}
		if rng.IntN(5) == 0 {
			n.Spec.Taints = []v1.Taint{{Key: "k", Effect: []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule}[rng.IntN(2)]}}
		}
		if rng.IntN(40) == 0 {
			n.Status.Allocatable[v1.ResourceMemory] = resource.MustParse("0")
		}
		c.SetNode(n)
	}
	for i := range rng.IntN(6 * nodes) {
		pod := diversePod(rng, i)
		pod.Name, pod.Spec.NodeName = fmt.Sprintf("before-%d", i), fmt.Sprintf("node-%d", rng.IntN(nodes))
		pod.UID = types.UID(pod.Name)
		c.SetPod(pod)
	}
	return c
}

// diversePod returns a pod of one of many apps, with a random size.
func diversePod(rng *rand.Rand, i int) *v1.Pod {
	mode := []string{"plain", "spread", "affinity", "anti"}[rng.IntN(4)]
	pod := benchPod(rng.IntN(200), "1000 apps, "+mode)
	pod.Name = fmt.Sprintf("pod-%d", i)
	pod.UID = types.UID(pod.Name)
	requests := v1.ResourceList{}
	if rng.IntN(8) > 0 {
		requests[v1.ResourceCPU] = *resource.NewMilliQuantity(rng.Int64N(60)*rng.Int64N(60), resource.DecimalSI)
	}
	if rng.IntN(8) > 0 {
		requests[v1.ResourceMemory] = *resource.NewQuantity(rng.Int64N(60)*rng.Int64N(60)<<20, resource.BinarySI)
	}
	pod.Spec.Containers[0].Resources.Requests = requests
	if rng.IntN(2) == 0 {
		pod.Spec.Tolerations = []v1.Toleration{{Key: "k", Operator: v1.TolerationOpExists}}
	}
	for j := range pod.Spec.TopologySpreadConstraints {
		if rng.IntN(4) == 0 {
			pod.Spec.TopologySpreadConstraints[j].TopologyKey = "rack"
		}
	}
	return pod
}

// TestSurveysFindTheBest verifies that surveys choose among the same best nodes as the plain
// evaluator, on many nodes and for pods that rarely have equal classes.
func TestSurveysFindTheBest(t *testing.T) {
	surveys := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c := diverseCluster(rng, 20+rng.IntN(150))
		d := New(c, plugins.Default(), seed)
		d.limits.LeafSize, d.limits.FewDomains = 1+rng.IntN(defaults.LeafSize), []int{2, defaults.FewDomains}[rng.IntN(2)]
		for i := range 60 {
			p := c.Pending(diversePod(rng, i))
			decision := d.Decide(p)
			if len(d.cache.rankings) == 0 {
				surveys++
			}
			holds(t, c, d, p, decision)
			if decision.Node != nil {
				c.Place(p, decision.Node)
			}
			if rng.IntN(4) == 0 {
				c.RemovePod(types.UID(fmt.Sprintf("before-%d", rng.IntN(500))))
			}
			if rng.IntN(20) == 0 {
				n := c.Nodes[rng.IntN(len(c.Nodes))].Object().DeepCopy()
				n.Labels[v1.LabelTopologyZone] = fmt.Sprintf("z%d", rng.IntN(4))
				c.SetNode(n)
			}
			d.checkBases(t)
		}
	}
	if surveys < 1000 {
		t.Errorf("%d pods were decided by survey", surveys)
	}
}

// TestTiesAreBrokenEvenly verifies that all best nodes are equally likely, regardless of their
// position in a tree, and also if they are set apart.
func TestTiesAreBrokenEvenly(t *testing.T) {
	const nodes, draws = 100, 40_000
	c := benchCluster(nodes, false)
	for i := range nodes { // several sizes, so that some cells of the tree have equal scores
		pod := benchPod(0, "plain")
		pod.UID, pod.Spec.NodeName = types.UID(fmt.Sprint("before-", i)), fmt.Sprintf("node-%d", i)
		if i < 3 {
			pod.Labels["app"] = "app-1" // nodes with such pods are set apart
		}
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(200+i%9+i/60*1000), resource.DecimalSI)
		c.SetPod(pod)
	}
	d := New(c, plugins.Default(), 1)
	d.limits.LeafSize = 4
	p := c.Pending(benchPod(1, "anti"))
	best := NewPlain(c, d.profile).Evaluate(p).Best()
	if len(best) < 10 {
		t.Fatalf("%d nodes are best: too few for the test", len(best))
	}
	drawn := map[string]int{}
	for range draws {
		drawn[d.Decide(p).Node.Name]++
	}
	want := float64(draws) / float64(len(best))
	sum := 0.0
	for _, v := range best {
		off := float64(drawn[v.Node.Name]) - want
		sum += off * off / want
	}
	if free := float64(len(best) - 1); sum > free+6*2*free { // far beyond random variation
		t.Errorf("chi square is %.0f for %.0f degrees of freedom: %v", sum, free, drawn)
	}
	if len(drawn) != len(best) {
		t.Errorf("%d nodes were drawn, want %d", len(drawn), len(best))
	}
}

// TestNewClassesNeedNoRankings verifies that a thousand workloads share one base and need no
// rankings. Only the first few classes have rankings, since they could have been the only classes.
func TestNewClassesNeedNoRankings(t *testing.T) {
	for _, mode := range []string{"spread", "affinity", "anti", "500 shapes"} {
		c := benchCluster(200, false)
		d := New(c, plugins.Default(), 1)
		for i := range 2000 {
			many := mode
			if mode != "500 shapes" {
				many = "1000 apps, " + mode
			}
			pod := benchPod(i%1000, many)
			pod.UID = types.UID(fmt.Sprint(i))
			p := c.Pending(pod)
			decision := d.Decide(p)
			if i%100 == 0 {
				holds(t, c, d, p, decision)
			}
			c.Place(p, decision.Node)
		}
		if len(d.cache.rankings) > defaults.FewClasses || len(d.cache.bases) != 1 {
			t.Errorf("%s: %d rankings and %d bases are kept, want those of the first %d and one base", mode, len(d.cache.rankings), len(d.cache.bases), defaults.FewClasses)
		}
	}
}

// TestExpensiveClassGetsRanking verifies that a class gets a ranking when its surveys have cost as
// much as a ranking would.
func TestExpensiveClassGetsRanking(t *testing.T) {
	c := benchCluster(300, false)
	d := New(c, plugins.Default(), 1)
	for i := range 2000 {
		pod := benchPod(0, "spread") // soon every node has such a pod
		pod.UID = types.UID(fmt.Sprint(i))
		p := c.Pending(pod)
		decision := d.Decide(p)
		if i%100 == 0 {
			holds(t, c, d, p, decision)
		}
		c.Place(p, decision.Node)
	}
	if len(d.cache.rankings) != 1 {
		t.Errorf("there are %d rankings, want 1", len(d.cache.rankings))
	}
}

// checkBases compares the sums and trees of the bases with the cluster.
func (d *Decider) checkBases(t interface{ Fatalf(string, ...any) }) {
	d.ix.followLog()
	for _, b := range d.cache.bases {
		b.catchUp()
		for _, s := range [...]*sums{b.votes, b.repelling} {
			if s == nil {
				continue
			}
			kept := s.byNode
			if s.countAll(); !slices.Equal(kept, s.byNode) {
				t.Fatalf("sums are %v, want %v", kept, s.byNode)
			}
		}
		held := 0
		for i, g := range b.groups {
			held += int(b.checkCell(t, g.tree, g.tree.root, int32(i)))
		}
		standing := 0
		for i, group := range b.at {
			node := int32(i)
			if group == none || slices.Contains(b.odd, node) {
				continue
			}
			full := isFull(b.roomOf(node))
			if full != (b.spots[node].cell == none) {
				t.Fatalf("node %d is full: %t; in no tree: %t", node, full, !full)
			}
			if !full {
				standing++
			}
		}
		if held != standing {
			t.Fatalf("trees hold %d nodes, want %d", held, standing)
		}
	}
}

func (b *base) checkCell(t interface{ Fatalf(string, ...any) }, of *tree, i, group int32) (count int32) {
	c := &of.cells[i]
	if c.left != none {
		for _, child := range [2]int32{c.left, c.right} {
			if of.cells[child].parent != i {
				t.Fatalf("cell %d has another parent", child)
			}
			box := c.box
			if box.joinBox(&of.cells[child].box); box != c.box {
				t.Fatalf("cell %d does not hold its child", i)
			}
			count += b.checkCell(t, of, child, group)
		}
	}
	if c.alike && len(c.nodes) > 0 {
		box, p := emptyBox, b.pointAt(c.nodes[0])
		if box.addPoint(&p); box != c.box {
			t.Fatalf("the box of cell %d is larger than its nodes, which are alike", i)
		}
	}
	for k, node := range c.nodes {
		p, box := b.pointAt(node), c.box
		if box.addPoint(&p); box != c.box {
			t.Fatalf("cell %d does not hold node %d", i, node)
		}
		if c.alike && !b.isAlike(node, c.nodes[0]) {
			t.Fatalf("cell %d holds nodes that are not alike", i)
		}
		if b.spots[node] != (spot{i, int32(k)}) || b.at[node] != group {
			t.Fatalf("node %d is not where it is said to be", node)
		}
	}
	if count += int32(len(c.nodes)); c.count != count {
		t.Fatalf("cell %d counts %d nodes, want %d", i, c.count, count)
	}
	return count
}

// TestFewClassesHaveRankingsAtOnce verifies that the second decision for a class is made from a
// ranking if there are few classes, since each class is then likely to have many pods. The first
// pod of a class is decided without a ranking.
func TestFewClassesHaveRankingsAtOnce(t *testing.T) {
	for _, mode := range []string{"plain", "spread", "affinity", "anti"} {
		c := benchCluster(200, false)
		d := New(c, plugins.Default(), 1)
		for round, want := range []int{0, 10} {
			for i := range 10 {
				pod := benchPod(i, mode)
				pod.UID = types.UID(fmt.Sprint(round, i))
				p := c.Pending(pod)
				decision := d.Decide(p)
				holds(t, c, d, p, decision)
				c.Place(p, decision.Node)
			}
			if have := len(d.cache.byClass); have != want {
				t.Errorf("%s, round %d: %d classes have a ranking, want %d", mode, round+1, have, want)
			}
		}
	}
}

// TestRankingsAreTakenOver verifies that in a large cluster, a class takes over the ranking of a
// class whose pods no longer arrive, instead of grouping all nodes again, and that a ranking in use
// is not taken over.
func TestRankingsAreTakenOver(t *testing.T) {
	c := benchCluster(200, false)
	d := New(c, plugins.Default(), 1)
	d.limits.ManyNodes, d.limits.Patience = 0, 5
	number := 0
	decide := func(app string) {
		pod := benchPod(0, "plain")
		pod.Name, pod.UID, pod.Labels = fmt.Sprint(number), types.UID(fmt.Sprint(number)), map[string]string{"app": app}
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
		}}
		number++
		p := c.Pending(pod)
		decision := d.Decide(p)
		holds(t, c, d, p, decision)
		c.Place(p, decision.Node)
	}
	for _, app := range []string{"a", "b", "c", "a"} {
		for range 20 {
			decide(app)
		}
	}
	if d.cache.using.rebuilds != 1 || len(d.cache.rankings) != 1 {
		t.Errorf("%d rankings, the last one built %d times; want one built once", len(d.cache.rankings), d.cache.using.rebuilds)
	}
	for range 20 {
		decide("a")
		decide("b")
	}
	if len(d.cache.rankings) != 2 {
		t.Errorf("two apps in turn have %d rankings, want 2", len(d.cache.rankings))
	}

	// A planner of moves decides the classes in turn, and each takes over the same ranking.
	d = New(c, plugins.Default(), 1)
	d.KeepFor(2 * idle)
	for range 20 {
		decide("a")
		decide("b")
	}
	if len(d.cache.rankings) != 1 || d.cache.using.rebuilds != 1 {
		t.Errorf("%d rankings, the last one built %d times; want one built once", len(d.cache.rankings), d.cache.using.rebuilds)
	}
}
