// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

var smallClusters = flag.Int("small-clusters", 40, "number of small clusters whose plans are compared with all possible plans")

// size is an amount of CPU in thousandths and of memory in MiB.
type size struct{ cpu, memory int64 }

func (s size) minus(o size) size { return size{s.cpu - o.cpu, s.memory - o.memory} }
func (s size) holds(o size) bool { return s.cpu >= o.cpu && s.memory >= o.memory }
func (s size) list() v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(s.cpu, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(s.memory<<20, resource.BinarySI)}
}

// smallCluster is a random cluster that is small enough to try all plans.
type smallCluster struct {
	offers []size
	prices []float64 // of the offers
	nodes  []int     // their offers
	pods   [][]size  // by node
	stay   []bool    // nodes whose pods must not be moved
}

func newSmallCluster(r *rand.Rand) *smallCluster {
	s := &smallCluster{}
	for _, cpu := range []int64{4, 8, 16} {
		memory := cpu * (1 + r.Int64N(4)) << 10
		s.offers = append(s.offers, size{cpu * 1000, memory})
		s.prices = append(s.prices, float64(cpu)*(0.02+0.01*r.Float64())+float64(memory>>10)*(0.001+0.001*r.Float64()))
	}
	kinds := make([]size, 2+r.IntN(3))
	for i := range kinds {
		kinds[i] = size{250 * (1 + r.Int64N(12)), 256 * (1 + r.Int64N(16))}
	}
	for range 2 + r.IntN(4) {
		offer := r.IntN(len(s.offers))
		free, pods := s.offers[offer], []size(nil)
		for range r.IntN(4) {
			if pod := kinds[r.IntN(len(kinds))]; free.holds(pod) {
				free, pods = free.minus(pod), append(pods, pod)
			}
		}
		s.nodes, s.pods, s.stay = append(s.nodes, offer), append(s.pods, pods), append(s.stay, len(pods) > 0 && r.IntN(8) == 0)
	}
	return s
}

// least returns the lowest cost of nodes after any set of nodes was removed and any nodes were
// bought. Pods of the other nodes stay where they are.
func (s *smallCluster) least() float64 {
	least := s.cost(0)
	for removed := range 1 << len(s.nodes) {
		var free, moved []size
		possible := true
		for i, offer := range s.nodes {
			if removed>>i&1 == 1 {
				possible = possible && !s.stay[i]
				moved = append(moved, s.pods[i]...)
				continue
			}
			room := s.offers[offer]
			for _, pod := range s.pods[i] {
				room = room.minus(pod)
			}
			free = append(free, room)
		}
		if possible {
			slices.SortFunc(moved, func(a, b size) int { return int(b.cpu - a.cpu) })
			s.buy(free, moved, 0, s.cost(removed), &least)
		}
	}
	return least
}

// cost returns the cost of the nodes that are not removed.
func (s *smallCluster) cost(removed int) (sum float64) {
	for i, offer := range s.nodes {
		if removed>>i&1 == 0 {
			sum += s.prices[offer]
		}
	}
	return sum
}

// buy tries all purchases of offers, from the given one on, that cost less than the least cost so
// far.
func (s *smallCluster) buy(free, pods []size, first int, cost float64, least *float64) {
	if cost >= *least-tiny {
		return
	}
	if packs(slices.Clone(free), pods) {
		*least = cost
		return
	}
	for offer := first; offer < len(s.offers); offer++ {
		s.buy(append(slices.Clone(free), s.offers[offer]), pods, offer, cost+s.prices[offer], least)
	}
}

// packs reports whether pods fit into the free room, by trying all assignments.
func packs(free, pods []size) bool {
	if len(pods) == 0 {
		return true
	}
	for i, room := range free {
		if !room.holds(pods[0]) || slices.Contains(free[:i], room) {
			continue
		}
		free[i] = room.minus(pods[0])
		if packs(free, pods[1:]) {
			return true
		}
		free[i] = room
	}
	return false
}

// objects returns the cluster's objects and its catalog.
func (s *smallCluster) objects() (list []metav1.Object, c *Catalog) {
	c = &Catalog{}
	for i, offer := range s.offers {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelInstanceTypeStable: fmt.Sprint("t", i), v1.LabelTopologyZone: "a"}}}
		node.Status.Allocatable = offer.list()
		node.Status.Allocatable[v1.ResourcePods] = resource.MustParse("110")
		c.Offers = append(c.Offers, Offer{Pool: "p", Type: fmt.Sprint("t", i), Zone: "a", Price: s.prices[i], Node: node, pool: -1})
	}
	slices.SortFunc(c.Offers, func(a, b Offer) int { return int(1e6 * (a.Price - b.Price)) })
	sets, yes := map[size]*appsv1.ReplicaSet{}, true
	for i, offer := range s.nodes {
		for _, o := range c.Offers {
			if o.Type == fmt.Sprint("t", offer) {
				node := o.Node.DeepCopy()
				node.Name = fmt.Sprint("node-", i)
				node.Labels[v1.LabelHostname] = node.Name
				list = append(list, node)
			}
		}
		for k, pod := range s.pods[i] {
			set := sets[pod]
			if set == nil {
				name := fmt.Sprint("set-", len(sets))
				set = &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
				set.Spec.Replicas, set.Spec.Selector = new(int32(0)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
				set.Spec.Template.Labels = set.Spec.Selector.MatchLabels
				set.Spec.Template.Spec.Containers = []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: pod.list()}}}
				sets[pod] = set
				list = append(list, set)
			}
			*set.Spec.Replicas++
			name := fmt.Sprintf("%s-%d-%d", set.Name, i, k)
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: set.Spec.Template.Labels,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set.Name, UID: set.UID, Controller: &yes}}}}
			if s.stay[i] {
				p.Annotations = map[string]string{"berth.dev/rebalance": "never"}
			}
			p.Spec = *set.Spec.Template.Spec.DeepCopy()
			p.Spec.NodeName = fmt.Sprint("node-", i)
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
			list = append(list, p)
		}
	}
	return list, c
}

// TestSmallClustersAreRepackedOptimally verifies that plans for small clusters are never cheaper
// than possible, and that at least 95 % of them have the lowest possible cost.
func TestSmallClustersAreRepackedOptimally(t *testing.T) {
	optimal, excess, worst := 0, 0.0, 0.0
	for seed := range uint64(*smallClusters) {
		s := newSmallCluster(rand.New(rand.NewPCG(seed, 5)))
		objects, catalog := s.objects()
		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Seed: seed, Horizon: 1000 * 24 * time.Hour} // so that every move pays
		plan, err := Make(w, catalog, o)
		if err == nil {
			err = plan.Replace(w.Twin, o)
		}
		if err != nil {
			t.Fatal(err)
		}
		after, least := plan.Replaced.Before-plan.Replaced.Hour, s.least()
		switch above := after - least; {
		case above < -1e-6:
			t.Errorf("seed %d: costs %v, and the lowest possible cost is %v", seed, after, least)
		case above < 1e-4:
			optimal++
		default:
			t.Logf("seed %d: %d nodes, %v -> %v, possible is %v", seed, len(s.nodes), plan.Replaced.Before, after, least)
			excess, worst = excess+100*above/least, max(worst, 100*above/least)
		}
	}
	t.Logf("%d of %d plans are optimal; the others cost %.1f %% too much in total, %.1f %% at worst", optimal, *smallClusters, excess, worst)
	if 100*optimal < 95**smallClusters {
		t.Errorf("%d of %d plans are optimal, want 95 %%", optimal, *smallClusters)
	}
}

// TestACheapNodeIsKept verifies that an existing node is kept if a new one for all pods would cost
// more: the catalog has no node as cheap as the existing ones.
func TestACheapNodeIsKept(t *testing.T) {
	s := &smallCluster{offers: []size{{16_000, 65_536}, {32_000, 65_536}}, prices: []float64{0.7, 0.4}}
	for range 12 {
		s.nodes, s.pods, s.stay = append(s.nodes, 1), append(s.pods, []size{{1000, 1024}}), append(s.stay, false)
	}
	objects, catalog := s.objects()
	for _, object := range objects {
		if n, ok := object.(*v1.Node); ok {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, PriceAnnotation, "0.4")
		}
	}
	catalog.Offers = slices.DeleteFunc(catalog.Offers, func(o Offer) bool { return o.Price == 0.4 })
	r := planReplacing(t, objects, catalog, simulate.Options{}).Replaced
	if costs := r.Before - r.Hour; costs > 0.4+tiny || costs < 0.4-tiny {
		t.Errorf("costs %v, want 0.4: %+v", costs, r.Exchanges)
	}
}
