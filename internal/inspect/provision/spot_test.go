// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

var spotWorlds = flag.Int("spot-worlds", 12, "random worlds of TestSpotKeepsToItsShare")

// TestSpotKeepsToItsShare verifies that every plan respects the share of spot, regardless of
// existing nodes and of the pods' spreading, although spot is cheaper for all pods, and that all
// pods run.
func TestSpotKeepsToItsShare(t *testing.T) {
	mostly := 0
	for seed := range uint64(*spotWorlds) {
		r := rand.New(rand.NewPCG(seed, 5))
		share := float64(r.IntN(11)) / 10
		var objects []metav1.Object
		for i := range r.IntN(6) {
			objects = append(objects, node(fmt.Sprint("old-", i), int64(2+r.IntN(8)), i%2 == 0 && share > 0.5))
		}
		for i := range 10 + r.IntN(80) {
			pod := podOf(fmt.Sprint("pod-", i), int64(100+100*r.IntN(30)))
			if r.IntN(3) == 0 {
				pod.Labels = map[string]string{"app": "web"}
				pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
					MaxSkew: 2, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
				}}
			}
			objects = append(objects, pod)
		}

		c := &Catalog{}
		for _, cpu := range []int64{4, 8, 16} {
			for _, spot := range []bool{true, false} {
				price := 0.05 * float64(cpu)
				if spot {
					price *= 0.3
				}
				n := node("", cpu, spot)
				c.Offers = append(c.Offers, Offer{Pool: "p", Type: fmt.Sprint(cpu), CapacityType: n.Labels[capacityTypeLabel], Price: price, Node: n, pool: -1})
			}
		}
		slices.SortStableFunc(c.Offers, func(a, b Offer) int { return int(1e6 * (a.Price - b.Price)) })

		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		before := shareOfSpot(w)
		p, err := Make(w, c, Options{Spot: &share})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		checkPlan(t, w, p)
		after := shareOfSpot(w)
		if len(p.Pending) > 0 || after > max(share, before)+1e-9 {
			t.Errorf("seed %d: spot has %.1f %%, of %.0f %% at most and %.1f %% before; %d pods are pending",
				seed, 100*after, 100*share, 100*before, len(p.Pending))
		}
		if after > share-0.15 {
			mostly++
		}
	}
	if mostly < *spotWorlds*4/5 { // plans must use most of the permitted share
		t.Errorf("spot is near its share in %d of %d worlds only", mostly, *spotWorlds)
	}
}

// TestSpotIsSpreadOverMarkets verifies that purchases use several types and zones of spot, although
// one of them is the cheapest for all pods.
func TestSpotIsSpreadOverMarkets(t *testing.T) {
	c, price := &Catalog{}, 0.1
	for _, zone := range []string{"a", "b"} {
		for _, kind := range []string{"x", "y"} {
			for _, spot := range []bool{true, false} {
				n := node("", 4, spot)
				n.Labels[v1.LabelTopologyZone], n.Labels[v1.LabelInstanceTypeStable] = zone, kind
				c.Offers = append(c.Offers, Offer{Pool: "p", Type: kind, Zone: zone, Node: n, pool: -1, Price: price,
					CapacityType: n.Labels[capacityTypeLabel]})
				if price += 0.01; !spot {
					c.Offers[len(c.Offers)-1].Price += 1
				}
			}
		}
	}
	slices.SortStableFunc(c.Offers, func(a, b Offer) int { return cmp.Compare(a.Price, b.Price) })
	var objects []metav1.Object
	for i := range 60 {
		objects = append(objects, podOf(fmt.Sprint("pod-", i), 1000))
	}
	w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Make(w, c, Options{Spot: new(0.6)})
	if err != nil {
		t.Fatal(err)
	}
	checkPlan(t, w, p)
	nodes := map[string]int{}
	for _, n := range p.Nodes {
		if n.CapacityType == "spot" {
			nodes[n.Type+n.Zone]++
		}
	}
	// Of 15 nodes, 9 may be spot: 3 of each of the three cheapest markets.
	if want := map[string]int{"xa": 3, "ya": 3, "xb": 3}; len(p.Nodes) != 15 || !maps.Equal(nodes, want) {
		t.Errorf("%d nodes, spot is on %v, want %v", len(p.Nodes), nodes, want)
	}
}

func node(name string, cpu int64, spot bool) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{capacityTypeLabel: "on-demand"}}}
	if spot {
		n.Labels[capacityTypeLabel] = "spot"
	}
	n.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(cpu, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(cpu<<32, resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(110, resource.DecimalSI),
	}
	return n
}

func podOf(name string, milli int64) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	pod.Spec.Containers = []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
		v1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI),
	}}}}
	return pod
}
