// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// stranger returns a pod with nine preferred terms. Each term has a different topology key, and
// selects every pod of every namespace.
func stranger(prefix string) *v1.Pod {
	pod := benchPod(0, "plain")
	pod.Name, pod.UID, pod.Labels = "stranger", "stranger", nil
	pod.Spec.NodeName = "node-0"
	pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{}}
	for i := range 9 {
		pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
			pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, v1.WeightedPodAffinityTerm{
				Weight: int32(1 + i), PodAffinityTerm: v1.PodAffinityTerm{
					TopologyKey: fmt.Sprint(prefix, i), LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{},
				}})
	}
	return pod
}

// TestKeysThatNoNodeHasCostNothing verifies that terms with topology keys absent from all nodes do
// not make decisions for other pods more expensive, and that a node with one of the keys adds a
// tally for that key only.
func TestKeysThatNoNodeHasCostNothing(t *testing.T) {
	c := benchCluster(20, false)
	d := New(c, plugins.Default(), 1)
	c.SetPod(stranger("nobody/k"))
	p := c.Pending(benchPod(1, "plain"))
	holds(t, c, d, p, d.Decide(p))
	r, pl := d.cache.rankingFor(p)
	if pl.way != ranked || len(pl.tallies) > 0 || r.flat == nil {
		t.Fatalf("way %d, %d tallies; want a plain ranking", pl.way, len(pl.tallies))
	}
	if len(d.ix.topologies) > 0 {
		t.Errorf("%d topologies are kept", len(d.ix.topologies))
	}
	node := c.Node("node-0").Object().DeepCopy()
	node.Labels["nobody/k3"] = "here"
	c.SetNode(node)
	holds(t, c, d, p, d.Decide(p))
	if _, pl := d.cache.rankingFor(p); len(pl.tallies) != 1 {
		t.Errorf("a node has one of the keys: %d tallies, want 1", len(pl.tallies))
	}
	delete(node.Labels, "nobody/k3")
	c.SetNode(node)
	holds(t, c, d, p, d.Decide(p))
	if _, pl := d.cache.rankingFor(p); len(pl.tallies) != 0 {
		t.Errorf("it is gone again: %d tallies, want none", len(pl.tallies))
	}
}

// TestRequiredAffinityIsCountedByKey verifies that thousands of required terms with a few topology
// keys are counted once per key. Terms with keys absent from all nodes are counted once in total.
// The test also verifies the decision after a node gets these keys.
func TestRequiredAffinityIsCountedByKey(t *testing.T) {
	for want, keys := range map[int][]string{2: {v1.LabelHostname, v1.LabelTopologyZone}, 1: {v1.LabelHostname, "nobody/a", "nobody/b"}} {
		c := benchCluster(20, false)
		d := New(c, plugins.Default(), 1)
		affinity := &v1.PodAffinity{}
		for i := range 5000 {
			affinity.RequiredDuringSchedulingIgnoredDuringExecution = append(affinity.RequiredDuringSchedulingIgnoredDuringExecution, v1.PodAffinityTerm{
				TopologyKey: keys[i%len(keys)], LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "plain"}},
			})
		}
		pod := benchPod(1, "plain")
		pod.Spec.Affinity = &v1.Affinity{PodAffinity: affinity}
		p := c.Pending(pod)
		holds(t, c, d, p, d.Decide(p))
		if _, pl := d.cache.rankingFor(p); len(pl.tallies) != want {
			t.Errorf("%v: %d tallies, want %d", keys, len(pl.tallies), want)
		}

		node := c.Node("node-0").Object().DeepCopy()
		for _, key := range keys {
			node.Labels[key] = "here"
		}
		c.SetNode(node)
		holds(t, c, d, p, d.Decide(p))
	}
}

// TestManyKeysAreRanked verifies that another pod's preferences with nine topology keys neither
// force the plain path nor create a group per combination of values, although the nodes have many
// combinations.
func TestManyKeysAreRanked(t *testing.T) {
	c := benchCluster(2000, false)
	withManyKeys(c)
	d := New(c, plugins.Default(), 1)
	c.SetPod(stranger("k"))
	for i := range 8 {
		pod := benchPod(i, "plain")
		pod.UID = types.UID(fmt.Sprint(i))
		p := c.Pending(pod)
		decision := d.Decide(p)
		holds(t, c, d, p, decision)
		r, pl := d.cache.rankingFor(p)
		if pl.way != ranked || len(pl.tallies) != 9 || len(r.groups) > defaults.Groups {
			t.Fatalf("way %d, %d tallies, %d groups", pl.way, len(pl.tallies), len(r.groups))
		}
		c.Place(p, decision.Node)
	}
}

// TestManySpreadConstraintsAreRanked verifies that surveys and rankings support any number of hard
// and soft constraints.
func TestManySpreadConstraintsAreRanked(t *testing.T) {
	for _, worth := range []int{-1, defaults.RankingCost} {
		c := benchCluster(60, false)
		for i, n := range c.SortedNodes() {
			node := n.Object().DeepCopy()
			for k := range 20 {
				node.Labels[fmt.Sprint("k", k)] = fmt.Sprint(i % (k + 2))
			}
			if i%4 == 0 {
				node.Spec.Taints = []v1.Taint{{Key: "taint", Effect: v1.TaintEffectNoSchedule}}
			}
			if i%7 == 0 {
				delete(node.Labels, "k0")
			}
			c.SetNode(node)
			old := benchPod(i%3, "plain")
			old.UID, old.Spec.NodeName = types.UID(fmt.Sprint("old-", i)), n.Name
			c.SetPod(old)
		}
		d := New(c, plugins.Default(), 1)
		d.limits.RankingCost = worth
		honor := v1.NodeInclusionPolicyHonor
		spread := func(i, hard, soft int, lacking string) *cluster.Pod {
			pod := benchPod(i%3, "plain")
			pod.UID = types.UID(fmt.Sprint(worth, "-", i, "-", lacking))
			add := func(key string, action v1.UnsatisfiableConstraintAction) {
				pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, v1.TopologySpreadConstraint{
					MaxSkew: int32(1 + i%3), TopologyKey: key, WhenUnsatisfiable: action, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
				})
				if list := pod.Spec.TopologySpreadConstraints; len(list)%5 == 0 {
					list[len(list)-1].NodeTaintsPolicy = &honor
				}
			}
			for k := range hard {
				add(fmt.Sprint("k", k), v1.DoNotSchedule)
			}
			for k := range soft {
				add(fmt.Sprint("k", 19-k), v1.ScheduleAnyway)
			}
			if lacking != "" {
				add("nobody/has-it", v1.UnsatisfiableConstraintAction(lacking))
			}
			return c.Pending(pod)
		}
		placed := 0
		for i := range 40 {
			p := spread(i, i%21, 20-i%13, "")
			decision := d.Decide(p)
			holds(t, c, d, p, decision)
			if pl := d.planner.newPlan(p); pl.way != ranked || len(pl.tallies) != i%21+20-i%13 {
				t.Fatalf("way %d, %d tallies", pl.way, len(pl.tallies))
			}
			if decision.Node != nil {
				c.Place(p, decision.Node)
				placed++
			}
			for _, lacking := range []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway} {
				p := spread(i, 9, 9, string(lacking))
				holds(t, c, d, p, d.Decide(p))
				if pl := d.planner.newPlan(p); len(pl.tallies) > 10 {
					t.Errorf("%d tallies though no node has a key", len(pl.tallies))
				}
			}
		}
		if placed < 10 {
			t.Errorf("%d pods were placed", placed)
		}
	}
}

// TestSoftSpreadOverManyDomainsIsRanked verifies that a class gets a ranking with few groups even
// if there are more racks, the domains of its soft constraint, than Limits.SoftDomains.
func TestSoftSpreadOverManyDomainsIsRanked(t *testing.T) {
	c := benchCluster(2*defaults.SoftDomains, false)
	for i, n := range c.SortedNodes() {
		node := n.Object().DeepCopy()
		node.Labels["rack"] = fmt.Sprint(i / 2 * 3)
		c.SetNode(node)
	}
	node := c.Node("node-7").Object().DeepCopy()
	node.Labels["rack"] = "one more"
	c.SetNode(node)
	d := New(c, plugins.Default(), 1)
	for i := range 12 {
		pod := benchPod(0, "spread")
		pod.UID = types.UID(fmt.Sprint(i))
		pod.Spec.TopologySpreadConstraints[1].TopologyKey = "rack"
		p := c.Pending(pod)
		decision := d.Decide(p)
		holds(t, c, d, p, decision)
		if r, pl := d.cache.rankingFor(p); pl.way != ranked || len(r.groups) > 50 {
			t.Fatalf("way %d, %d groups", pl.way, len(r.groups))
		}
		c.Place(p, decision.Node)
	}
}

// TestManyKeysOfOthersNeedNoRanking verifies that new classes are decided without a ranking even if
// another pod prefers every pod by nine keys present on nodes.
func TestManyKeysOfOthersNeedNoRanking(t *testing.T) {
	c := benchCluster(500, false)
	withManyKeys(c)
	d := New(c, plugins.Default(), 1)
	c.SetPod(stranger("k"))
	for i := range 30 {
		pod := benchPod(i, []string{"1000 apps, spread", "1000 apps, affinity", "1000 apps, anti"}[i%3])
		pod.UID = types.UID(fmt.Sprint(i))
		p := c.Pending(pod)
		decision := d.Decide(p)
		holds(t, c, d, p, decision)
		c.Place(p, decision.Node)
	}
	if len(d.cache.bases) == 0 || len(d.cache.rankings) > 0 {
		t.Errorf("%d bases and %d rankings; want no ranking", len(d.cache.bases), len(d.cache.rankings))
	}
}

// withManyKeys adds nine labels to the nodes. The number of distinct values differs between labels.
func withManyKeys(c *cluster.Cluster) {
	for i, n := range c.SortedNodes() {
		node := n.Object().DeepCopy()
		for k := range 9 {
			node.Labels[fmt.Sprint("k", k)] = fmt.Sprint((i * (k + 3)) % (3 + 2*k))
		}
		c.SetNode(node)
	}
}

// TestEmptyZoneIsRanked verifies that the default constraints treat nodes with an empty zone label
// and nodes without the label as a single zone.
func TestEmptyZoneIsRanked(t *testing.T) {
	for _, worth := range []int{0, defaults.RankingCost} { // with and without rankings
		c := benchCluster(12, false)
		for i, change := range []func(map[string]string){
			func(l map[string]string) { l[v1.LabelTopologyZone] = "" }, func(l map[string]string) { delete(l, v1.LabelTopologyZone) },
		} {
			for _, name := range []string{fmt.Sprint("node-", 2*i), fmt.Sprint("node-", 2*i+1)} {
				node := c.Node(name).Object().DeepCopy()
				change(node.Labels)
				c.SetNode(node)
			}
		}
		c.Services.Set(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": "app-0"}}})
		d := New(c, plugins.Default(), 1)
		d.limits.RankingCost = worth
		for i := range 60 {
			pod := benchPod(0, "plain")
			pod.UID = types.UID(fmt.Sprint(i))
			p := c.Pending(pod)
			decision := d.Decide(p)
			holds(t, c, d, p, decision)
			if i%7 != 0 {
				c.Place(p, decision.Node)
			}
			if _, pl := d.cache.rankingFor(p); pl.way != ranked {
				t.Fatalf("way %d, want a ranking", pl.way)
			}
		}
	}
}

// TestChurnLeavesNothingBehind verifies that terms, topologies, domains and rankings do not
// accumulate while pods and node labels change.
func TestChurnLeavesNothingBehind(t *testing.T) {
	c := benchCluster(10, false)
	d := New(c, plugins.Default(), 1)
	for i := range 3000 {
		node := c.Node("node-3").Object().DeepCopy()
		key := fmt.Sprint("key-", i%40)
		node.Labels = map[string]string{v1.LabelHostname: "node-3", v1.LabelTopologyZone: fmt.Sprint("zone-", i), key: fmt.Sprint(i)}
		c.SetNode(node)
		pod := benchPod(i, "affinity")
		pod.UID = types.UID(fmt.Sprint(i))
		pod.Labels["app"] = fmt.Sprint("app-", i)
		term := &pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm
		term.LabelSelector = &metav1.LabelSelector{MatchLabels: pod.Labels}
		if i%3 == 0 {
			term.TopologyKey = key
		}
		p := c.Pending(pod)
		decision := d.Decide(p)
		if decision.Node == nil {
			t.Fatalf("pod %d goes nowhere", i)
		}
		if i%100 == 0 {
			holds(t, c, d, p, decision)
		}
		if i%2 == 0 {
			c.Place(p, decision.Node)
		} else {
			c.Nominate(p, decision.Node.Name)
		}
		c.RemovePod(p.UID())
	}
	d.Decide(c.Pending(benchPod(0, "plain")))
	if n := d.ix.terms.known.Len(); n > 2*fewUnused+2 || d.ix.terms.byLabel.Len() > n {
		t.Errorf("%d terms are known, by %d labels", n, d.ix.terms.byLabel.Len())
	}
	if n := len(d.ix.guests); n > 0 {
		t.Errorf("%d nodes are waited for", n)
	}
	if n := len(d.ix.keys.nodes); n > 3 {
		t.Errorf("%d keys are known, want the host name, the zone and the last one", n)
	}
	if n := d.ix.topologyFor(v1.LabelTopologyZone, false).domainCount(); n > 5 {
		t.Errorf("%d zones, want those of today", n)
	}
	d.meter.Clock += idle + 1 // much later
	d.cache.dropAllIdle()
	if len(d.cache.rankings)+len(d.cache.bases)+len(d.cache.byClass)+len(d.planner.skeletons) > 0 {
		t.Errorf("%d rankings of %d classes, %d bases and %d skeletons are kept", len(d.cache.rankings), len(d.cache.byClass), len(d.cache.bases), len(d.planner.skeletons))
	}
	if n := len(d.ix.topologies); n > 9 {
		t.Errorf("%d topologies are kept", n)
	}
}

// TestRankingsForgetGoneClasses verifies that a ranking in continuous use forgets classes that do
// not recur.
func TestRankingsForgetGoneClasses(t *testing.T) {
	c := benchCluster(10, false)
	d := New(c, plugins.Default(), 1)
	d.limits.RankingCost = -1
	for i := range 3 * idle {
		pod := benchPod(0, "spread")
		pod.UID = types.UID(fmt.Sprint(i))
		pod.Labels["pod"] = fmt.Sprint(i)
		p := c.Pending(pod)
		c.Place(p, d.Decide(p).Node)
		c.RemovePod(types.UID(fmt.Sprint(i - 20)))
	}
	if n := len(d.cache.byClass); n > idle+often+1 {
		t.Errorf("%d classes have a ranking", n)
	}
	for _, r := range d.cache.rankings {
		if n := len(r.counted.effects); n > 2*idle {
			t.Errorf("the effects of %d classes are known, where 20 have pods", n)
		}
	}
	if len(d.cache.rankings) > 3 {
		t.Errorf("%d rankings", len(d.cache.rankings))
	}
}

// TestIdleRankingsGoAtOnce verifies that a ranking is dropped at the first decision after its idle
// time, and that remembered classes keep no reference to its data.
func TestIdleRankingsGoAtOnce(t *testing.T) {
	c := benchCluster(2, false)
	d := New(c, plugins.Default(), 1)
	d.limits.RankingCost = -1
	for i := range 2*idle + often/2 {
		pod := benchPod(0, "plain")
		pod.UID = types.UID(fmt.Sprint(i))
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(i+1), resource.BinarySI)
		d.Decide(c.Pending(pod))
		if n := len(d.cache.rankings); n > idle+1 || i > idle && n < idle {
			t.Fatalf("after %d decisions, there are %d rankings", i+1, n)
		}
	}
	dropped := 0
	for _, m := range d.cache.byClass {
		if m.dropped {
			dropped++
			if m.bucket != nil || m.plan != nil {
				t.Fatal("a class keeps a ranking that was dropped")
			}
		}
	}
	if dropped == 0 {
		t.Error("no class is known that had a ranking; the test shows nothing")
	}
}

// TestTermsAreCountedByPod verifies that terms are kept while any pod has them, regardless of the
// nodes of the pods.
func TestTermsAreCountedByPod(t *testing.T) {
	c := benchCluster(2, false)
	d := New(c, plugins.Default(), 1)
	pods := func() (n int) {
		d.ix.followLog()
		for users := range d.ix.terms.known.All {
			n += int(users.pods)
		}
		return n
	}
	want := func(want int, when string) {
		t.Helper()
		if got := pods(); got != want {
			t.Errorf("%s: %d pods with terms, want %d", when, got, want)
		}
	}
	var placed []*cluster.Pod
	for i := range 4 {
		pod := benchPod(0, "anti")
		pod.UID, pod.Spec.NodeName = types.UID(fmt.Sprint(i)), fmt.Sprint("node-", i%2)
		placed = append(placed, c.SetPod(pod))
	}
	want(4, "four placed")
	c.RemovePod(placed[0].UID())
	want(3, "one gone")
	waiting := benchPod(1, "anti")
	waiting.UID = "waiting"
	c.Nominate(c.Pending(waiting), "node-1")
	want(4, "one nominated")
	node := c.Node("node-1").Object()
	c.RemoveNode("node-1") // two placed pods, one nominated pod
	want(1, "a node gone")
	c.SetNode(node)
	want(4, "it is back")
	d.ix.readAnew()
	want(4, "read anew")
	c.Unnominate("waiting")
	want(3, "no longer nominated")
}

// TestTermsConcernThoseTheyMayMean verifies that a plan stays valid when terms that cannot select
// its pods are added, and is replaced when a term that may select them is added.
func TestTermsConcernThoseTheyMayMean(t *testing.T) {
	c := benchCluster(3, false)
	d := New(c, plugins.Default(), 1)
	web := benchPod(1, "anti") // pod of app-1
	p := c.Pending(web)
	planOf := func() *plan {
		d.ix.followLog()
		_, pl := d.cache.rankingFor(p)
		return pl
	}
	place := func(uid string, about *metav1.LabelSelector) {
		pod := benchPod(2, "anti")
		pod.UID, pod.Spec.NodeName = types.UID(uid), "node-2"
		pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector = about
		c.SetPod(pod)
	}
	in := func(values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values}}}
	}
	first := planOf()
	place("other", in("app-2", "app-3"))
	place("nobody", nil)
	if planOf() != first {
		t.Error("the plan was made anew for terms that mean other pods")
	}
	for i, about := range []*metav1.LabelSelector{
		in("app-3", "app-1"), {MatchLabels: map[string]string{"app": "app-1"}}, {}, // every pod
		{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}},
	} {
		before := planOf()
		place(fmt.Sprint("about it ", i), about)
		if planOf() == before {
			t.Errorf("the plan is the same after a term came that selects %s", metav1.FormatLabelSelector(about))
		}
		holds(t, c, d, p, d.Decide(p))
	}
}

// TestStrangersWithManyKeys verifies that decisions are correct while pods with terms that select
// every pod, by nine keys present on nodes, are added and removed. Other pods are decided from
// rankings, from bases that sum the terms, and from bases that do not. Some of the pods with terms
// are only nominated.
func TestStrangersWithManyKeys(t *testing.T) {
	for _, worth := range []struct{ ranking, summing int }{{-1, 0}, {1000, -1}, {1000, 1000}} {
		rng := rand.New(rand.NewPCG(1, uint64(worth.summing)))
		c := benchCluster(60, false)
		withManyKeys(c)
		d := New(c, plugins.Default(), 1)
		d.limits.RankingCost, d.limits.SumsCost = worth.ranking, worth.summing
		modes := []string{"plain", "affinity", "anti", "spread"}
		summed := 0
		for i := range 400 {
			strange := strangerWith(i%8, int32(1+rng.IntN(100)), rng.IntN(3) == 0)
			strange.Spec.NodeName = fmt.Sprint("node-", rng.IntN(60))
			if i%3 == 0 {
				c.RemovePod(strange.UID)
			} else {
				c.SetPod(strange)
			}
			pod := benchPod(rng.IntN(3), modes[rng.IntN(len(modes))])
			pod.UID = types.UID(fmt.Sprint(i))
			p := c.Pending(pod)
			decision := d.Decide(p)
			holds(t, c, d, p, decision)
			switch {
			case decision.Node == nil:
			case i%4 == 0:
				c.Place(p, decision.Node)
			case i%9 == 0:
				waiting := strangerWith(100+i, 50, true)
				waiting.Spec.Priority = new(int32(10))
				waiting.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("31")
				c.Nominate(c.Pending(waiting), decision.Node.Name)
			}
			for _, b := range d.cache.bases {
				if b.votes != nil {
					summed++
				}
			}
		}
		if (summed > 0) != (worth.summing < 0) {
			t.Errorf("worth %+v: bases summed %d times", worth, summed)
		}
	}
}

// strangerWith returns a stranger with different weights, and optionally with required
// anti-affinity to pods of one app by some of the keys.
func strangerWith(i int, weight int32, repels bool) *v1.Pod {
	pod := stranger("k")
	pod.Name, pod.UID = fmt.Sprint("stranger-", i), types.UID(fmt.Sprint("stranger-", i))
	pod.Spec.Affinity.PodAntiAffinity = &v1.PodAntiAffinity{}
	for k := range pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[k].Weight = 1 + (weight+int32(k*k))%100
	}
	if repels {
		for k := 6; k < 9; k++ {
			avoiding(fmt.Sprint("k", k), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "app-1"}})(pod)
		}
	}
	return pod
}
