// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

var clusters = flag.Int("clusters", 3, "number of random clusters to repack")

// TestRepackedClustersAreNearTheBound verifies that replacing nodes of random half-empty clusters
// leaves no pod pending and costs little more than the lower bound.
func TestRepackedClustersAreNearTheBound(t *testing.T) {
	sum, worst := 0.0, 0.0
	for seed := range uint64(*clusters) {
		objects, catalog := halfEmpty(rand.New(rand.NewPCG(seed, 77)), 10+int(seed*7%40))
		pools, nodes := []string{"a", "b", ""}, 0
		for _, object := range objects {
			if n, ok := object.(*v1.Node); ok {
				metav1.SetMetaDataLabel(&n.ObjectMeta, nodePoolLabel, pools[nodes%len(pools)])
				nodes++
			}
		}
		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Make(w, catalog, Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Replace(w.Twin, Options{Seed: seed}); err != nil {
			t.Fatal(err)
		}
		r := plan.Replaced
		after := r.Before - r.Hour
		if r.Least <= 0 || after < r.Least-tiny {
			t.Errorf("seed %d: costs %v, and the lower bound is %v", seed, after, r.Least)
		}
		gap := 100 * (after/r.Least - 1)
		t.Logf("seed %d: %d nodes, %.2f -> %.2f, at least %.2f: %.1f %%, %d exchanges", seed, len(w.Nodes()), r.Before, after, r.Least, gap, len(r.Exchanges))
		sum, worst = sum+gap, max(worst, gap)
		checkReplaced(t, seed, w, plan)
		before, least := 0.0, 0.0
		for name, p := range r.Pools {
			before, least = before+p.Hour, least+p.Least
			if p.Least <= 0 || p.Least > p.Hour {
				t.Errorf("seed %d: NodePool %q: %+v", seed, name, p)
			}
		}
		if len(r.Pools) != len(pools) || math.Abs(before-r.Before) > 1e-6 || math.Abs(least-r.Least) > 1e-6 {
			t.Errorf("seed %d: the costs of %d NodePools add up to %v and %v, and the cluster has %v and %v", seed, len(r.Pools), before, least, r.Before, r.Least)
		}
	}
	mean := sum / float64(*clusters)
	t.Logf("%d clusters: %.1f %% above the bound on average, %.1f %% at worst", *clusters, mean, worst)
	if mean > 3 || worst > 8 {
		t.Errorf("%.1f %% above the bound on average, %.1f %% at worst", mean, worst)
	}
}

// TestExchangesPayForTheirMoves verifies that every exchange saves more within the horizon than its
// moves cost, that a short horizon or a high minimum leaves all used nodes, and that pods that are
// expensive to move stay longer.
func TestExchangesPayForTheirMoves(t *testing.T) {
	replaced := func(o Options, change func(*v1.Pod)) *Replaced {
		objects, catalog := halfEmpty(rand.New(rand.NewPCG(3, 77)), 12)
		for _, object := range objects {
			if p, ok := object.(*v1.Pod); ok && change != nil {
				change(p)
			}
		}
		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Make(w, catalog, o)
		if err == nil {
			err = plan.Replace(w.Twin, o)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range plan.Replaced.Exchanges {
			if horizon := cmp.Or(o.Horizon, DefaultHorizon); e.Hour*horizon.Hours() <= e.MoveCost || e.Hour < o.MinSavings {
				t.Errorf("horizon %s, at least %v: an exchange saves %v an hour, and its moves cost %v", horizon, o.MinSavings, e.Hour, e.MoveCost)
			}
			if len(e.Moves) > 0 && e.MoveCost < moveCost*float64(len(e.Moves))-tiny {
				t.Errorf("%d moves cost %v", len(e.Moves), e.MoveCost)
			}
		}
		return plan.Replaced
	}

	all := replaced(Options{}, nil)
	if all.Hour <= 0 {
		t.Fatal("nothing is saved without limits")
	}
	for _, o := range []Options{{Horizon: time.Second}, {MinSavings: 10 * all.Before}} {
		if r := replaced(o, nil); len(r.Exchanges) > 0 {
			t.Errorf("%+v: %d exchanges", o, len(r.Exchanges))
		}
	}
	// At this horizon, moves of ordinary pods pay, and moves of important pods do not.
	sum := 0.0
	for _, e := range all.Exchanges {
		sum += e.MoveCost
	}
	limit := Options{Horizon: time.Duration(1.5 * sum / all.Hour * float64(time.Hour))}
	if r := replaced(limit, nil); r.Hour < 0.5*all.Hour {
		t.Errorf("with a horizon of %s, only %v of %v an hour is saved", limit.Horizon, r.Hour, all.Hour)
	}
	important := int32(1)
	if r := replaced(limit, func(p *v1.Pod) { p.Spec.Priority = &important }); r.Hour >= all.Hour {
		t.Errorf("important pods are moved as readily as others: %v an hour is saved", r.Hour)
	}
}

// TestNodesOfUndisturbedPodsStay verifies that nodes whose pods must not be moved stay, and nodes
// that Karpenter must not remove.
func TestNodesOfUndisturbedPodsStay(t *testing.T) {
	objects, catalog := halfEmpty(rand.New(rand.NewPCG(3, 77)), 12)
	marks := map[string]string{"berth.dev/rebalance": "never", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false", disruption.KarpenterAnnotation: "true"}
	stay := map[string]string{}
	for key, value := range marks {
		for _, object := range objects {
			if p, ok := object.(*v1.Pod); ok && stay[p.Spec.NodeName] == "" {
				p.Annotations, stay[p.Spec.NodeName] = map[string]string{key: value}, key
				break
			}
		}
	}
	keys := []string{disruption.KarpenterAnnotation, disruption.ScaleDownAnnotation}
	for _, object := range objects {
		if n, ok := object.(*v1.Node); ok && stay[n.Name] == "" && len(keys) > 0 {
			n.Annotations, stay[n.Name] = map[string]string{keys[0]: "true"}, keys[0]
			keys = keys[1:]
		}
	}
	plan := planReplacing(t, objects, catalog, simulate.Options{})
	for _, e := range plan.Replaced.Exchanges {
		for _, name := range e.Gone {
			if stay[name] != "" {
				t.Errorf("%s is removed in spite of %s", name, stay[name])
			}
		}
	}
	named := 0
	for _, k := range plan.Replaced.Kept {
		if key := stay[k.Node]; key != "" && strings.Contains(k.Why, key) {
			named++
		}
	}
	if named < 2 { // others stay anyway
		t.Errorf("the reasons %v name %d annotations", plan.Replaced.Kept, named)
	}
	if len(plan.Replaced.Exchanges) == 0 {
		t.Error("no other node is removed")
	}
}

// BenchmarkRepack measures planning for half-empty clusters; it includes opening the worlds. cost/h
// is the cost afterwards, and bound/h is the lower bound.
func BenchmarkRepack(b *testing.B) {
	for _, nodes := range []int{250, 1000, 5000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			objects, catalog := halfEmpty(rand.New(rand.NewPCG(1, 77)), nodes)
			for b.Loop() {
				w, err := simulate.Open(manifest.Assemble("bench", objects), simulate.Options{Seed: 1})
				if err != nil {
					b.Fatal(err)
				}
				plan, err := Make(w, catalog, Options{})
				if err == nil {
					err = plan.Replace(w.Twin, Options{})
				}
				if err != nil {
					b.Fatal(err)
				}
				r := plan.Replaced
				b.ReportMetric(r.Before, "before/h")
				b.ReportMetric(r.Before-r.Hour, "cost/h")
				b.ReportMetric(r.Least, "bound/h")
			}
		})
	}
}

// checkReplaced carries out the exchanges with the operations of a user and the scheduler's scores,
// and verifies that all pods run.
func checkReplaced(t *testing.T, seed uint64, of *simulate.World, plan *Plan) {
	t.Helper()
	w, err := of.Twin()
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	for _, e := range plan.Replaced.Exchanges {
		if err := w.Toward(e.Targets); err != nil {
			t.Fatal(err)
		}
		var made []metav1.Object
		for _, n := range e.Nodes {
			made = append(made, plan.catalog.Offers[n.offer].named(n.Name, w))
		}
		if _, err := w.Apply(manifest.Assemble("new nodes", made)); err != nil {
			t.Fatal(err)
		}
		for _, name := range e.Gone {
			if _, err := w.Do(&simulate.Operation{Cordon: &simulate.Nodes{Node: name}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range e.Gone {
			drain := &simulate.Drain{Nodes: simulate.Nodes{Node: name}}
			if _, err := w.Do(&simulate.Operation{Drain: drain}); err != nil {
				t.Fatal(err)
			}
			w.AdvanceUntilQuiet(w.Elapsed() + drainTime)
			if w.HoldsPods(name) {
				t.Errorf("seed %d: node %s is not empty after its drain", seed, name)
			}
			if _, err := w.Do(&simulate.Operation{RemoveNode: &simulate.Nodes{Node: name}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if waiting := waitingNames(w); len(waiting) > 0 {
		t.Errorf("seed %d: %d pods are pending afterwards", seed, len(waiting))
	}
}

// halfEmpty returns a random cluster whose nodes were full before half of the pods left, and the
// catalog with its types of nodes.
func halfEmpty(r *rand.Rand, nodes int) (list []metav1.Object, c *Catalog) {
	c = &Catalog{}
	for _, cpu := range []int64{4, 8, 16} {
		for family, ratio := range map[string]int64{"c": 2, "m": 4, "r": 8} {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
				v1.LabelInstanceTypeStable: fmt.Sprintf("%s-%d", family, cpu), v1.LabelTopologyZone: "a",
			}}}
			node.Status.Allocatable = v1.ResourceList{
				v1.ResourceCPU:    *resource.NewMilliQuantity(cpu*1000-100, resource.DecimalSI),
				v1.ResourceMemory: *resource.NewQuantity((cpu*ratio)<<30-500<<20, resource.BinarySI),
				v1.ResourcePods:   *resource.NewQuantity(110, resource.DecimalSI),
			}
			price := float64(cpu)*0.025 + float64(cpu*ratio)*0.001
			c.Offers = append(c.Offers, Offer{Pool: "p", Type: node.Labels[v1.LabelInstanceTypeStable], Zone: "a", Price: price, Node: node, pool: -1})
		}
	}
	slices.SortFunc(c.Offers, func(a, b Offer) int { return int(1e6 * (a.Price - b.Price)) })

	yes := true
	for i := range 4 + r.IntN(8) {
		name := fmt.Sprintf("web-%d", i)
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
		set.Spec.Template.Labels = map[string]string{"app": name}
		set.Spec.Template.Spec.Containers = []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity(150+50*r.Int64N(22), resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity((400+100*r.Int64N(17))<<20, resource.BinarySI),
		}}}}
		list = append(list, set)
	}
	owners := list
	for i := range nodes {
		o := &c.Offers[r.IntN(len(c.Offers))]
		node := o.Node.DeepCopy()
		node.Name = fmt.Sprintf("node-%d", i)
		node.Labels[v1.LabelHostname] = node.Name
		list = append(list, node)
		cpu, memory := node.Status.Allocatable.Cpu().DeepCopy(), node.Status.Allocatable.Memory().DeepCopy()
		for n := range 40 {
			set := owners[r.IntN(len(owners))].(*appsv1.ReplicaSet)
			requests := set.Spec.Template.Spec.Containers[0].Resources.Requests
			cpu.Sub(*requests.Cpu())
			memory.Sub(*requests.Memory())
			if cpu.Sign() < 0 || memory.Sign() < 0 {
				break
			}
			if r.IntN(2) == 0 {
				continue // the pod has left
			}
			name := fmt.Sprintf("%s-%d-%d", set.Name, i, n)
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: set.Spec.Template.Labels,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set.Name, UID: set.UID, Controller: &yes}}}}
			pod.Spec = *set.Spec.Template.Spec.DeepCopy()
			pod.Spec.NodeName = node.Name
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
			count := int32(1)
			if set.Spec.Replicas != nil {
				count += *set.Spec.Replicas
			}
			set.Spec.Replicas = &count
			list = append(list, pod)
		}
	}
	return list, c
}

// TestNodePoolsKeepTheirNodes verifies that nodes stay if Karpenter would not remove them: by the
// consolidation rules of their NodePool, or because its budgets allow no removal now. Nodes of a
// NodePool with unknown fields stay as well.
func TestNodePoolsKeepTheirNodes(t *testing.T) {
	rules := map[string]string{
		"never":  `{consolidateAfter: Never}`,
		"empty":  `{consolidateAfter: 0s, consolidationPolicy: WhenEmpty}`,
		"busy":   `{consolidateAfter: 0s, budgets: [{nodes: "0", reasons: [Underutilized]}]}`,
		"free":   `{consolidateAfter: 0s, budgets: [{nodes: "0", reasons: [Drifted]}, {nodes: "1"}]}`,
		"closed": `{consolidateAfter: 0s, budgets: [{nodes: "0", schedule: "@hourly", duration: 1h}]}`,
		"newer":  "{consolidateAfter: 0s}\n  future: {field: 1}",
	}
	objects, catalog := halfEmpty(rand.New(rand.NewPCG(3, 77)), 20)
	names, poolOf := slices.Sorted(maps.Keys(rules)), map[string]string{}
	for _, object := range objects {
		if n, ok := object.(*v1.Node); ok {
			poolOf[n.Name] = names[len(poolOf)%len(names)]
			n.Labels = maps.Clone(n.Labels)
			metav1.SetMetaDataLabel(&n.ObjectMeta, nodePoolLabel, poolOf[n.Name])
		}
	}
	var pools []manifest.Document
	for name, spec := range rules {
		pools = append(pools, manifest.Document{Kind: manifest.NodePool, File: "the cluster", Text: []byte("kind: NodePool\napiVersion: karpenter.sh/v1\nmetadata: {name: " + name +
			"}\nspec:\n  template: {spec: {requirements: [], nodeClassRef: {}}}\n  disruption: " + spec + "\n")})
	}
	if err := catalog.complete(pools); err != nil || len(catalog.Notes) != 1 || !strings.Contains(catalog.Notes[0], `NodePool "newer" is ignored`) {
		t.Fatal(catalog.Notes, err)
	}
	plan := planReplacing(t, objects, catalog, simulate.Options{Now: time.Date(2026, 11, 28, 12, 30, 0, 0, time.UTC)})
	for _, e := range plan.Replaced.Exchanges {
		for _, name := range e.Gone {
			if poolOf[name] != "free" {
				t.Errorf("%s of NodePool %s is removed", name, poolOf[name])
			}
		}
	}
	for _, k := range plan.Replaced.Kept {
		if named := strings.Contains(k.Why, "NodePool "+poolOf[k.Node]); named != (poolOf[k.Node] != "free") {
			t.Errorf("%s of NodePool %s stays: %s", k.Node, poolOf[k.Node], k.Why)
		}
	}
	if len(plan.Replaced.Exchanges) == 0 {
		t.Error("no other node is removed")
	}
}

// planReplacing returns the plan for a cluster of these objects, with replacements.
func planReplacing(t *testing.T, objects []metav1.Object, catalog *Catalog, options simulate.Options) *Plan {
	t.Helper()
	w, err := simulate.Open(manifest.Assemble("test", objects), options)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Make(w, catalog, Options{})
	if err == nil {
		err = plan.Replace(w.Twin, Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestCheapNodesAreConsolidated verifies that many nodes are removed together even if the catalog
// has no node as cheap as the existing ones.
func TestCheapNodesAreConsolidated(t *testing.T) {
	objects, catalog := halfEmpty(rand.New(rand.NewPCG(3, 77)), 80)
	for _, object := range objects {
		if n, ok := object.(*v1.Node); ok {
			price, _ := catalog.priceOf(n)
			n.Annotations = map[string]string{PriceAnnotation: fmt.Sprint(price)}
		}
	}
	for i := range catalog.Offers {
		catalog.Offers[i].Price *= 5
	}
	w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Make(w, catalog, Options{})
	if err == nil {
		err = p.Replace(w.Twin, Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	checkReplaced(t, 3, w, p)
	if r := p.Replaced; r.Hour < 0.4*r.Before {
		t.Errorf("%v of %v an hour are saved, in %d exchanges", r.Hour, r.Before, len(r.Exchanges))
	}
}

// TestThePlanSoFarIsUsedWhenTimeIsUp verifies that a search without any time still finds a valid
// plan that saves much, and that a search that is interrupted later finds one at least as good.
func TestThePlanSoFarIsUsedWhenTimeIsUp(t *testing.T) {
	objects, catalog := halfEmpty(rand.New(rand.NewPCG(3, 77)), 12)
	plan := func(asked int) (*Replaced, int) {
		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		asks, tries := 0, 0
		o := Options{TimeIsUp: func() bool { asks++; return asks > asked }, Progress: func(words string) {
			if strings.HasPrefix(words, "replacing") {
				tries++
			}
		}}
		p, err := Make(w, catalog, o)
		if err == nil {
			err = p.Replace(w.Twin, o)
		}
		if err != nil {
			t.Fatal(err)
		}
		checkReplaced(t, 3, w, p)
		return p.Replaced, tries
	}
	all, most := plan(math.MaxInt)
	for _, asked := range []int{0, 1, 3} {
		r, tries := plan(asked)
		t.Logf("%d of %d drafts: %v of %v an hour are saved", tries, most, r.Hour, all.Hour)
		if r.Hour < 0.8*all.Hour || r.Hour > all.Hour+tiny || asked < 3 && tries >= most {
			t.Errorf("%d of %d drafts: %v of %v an hour are saved", tries, most, r.Hour, all.Hour)
		}
	}
}
