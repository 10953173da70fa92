// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestTakersAnswerAsTheEngineDoes verifies that takers and the engine agree on the kinds of nodes
// for a pod, although takers evaluates pods that differ only in size or spread constraints
// together.
func TestTakersAnswerAsTheEngineDoes(t *testing.T) {
	narrowed := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 21))
		letter := func() map[string]string { return map[string]string{"l": string(rune('a' + r.IntN(3)))} }
		c := &Catalog{}
		for _, zone := range []string{"a", "b", "c"} {
			n := node("", 8, false)
			n.Labels[v1.LabelTopologyZone] = zone
			c.Offers = append(c.Offers, Offer{Pool: zone, Zone: zone, Price: 1, Node: n, pool: -1})
		}

		var objects []metav1.Object
		for i := range r.IntN(8) {
			n := node(fmt.Sprint("old-", i), 8, false)
			n.Labels[v1.LabelHostname], n.Labels[v1.LabelTopologyZone] = n.Name, string(rune('a'+r.IntN(3)))
			objects = append(objects, n)
			for k := range r.IntN(12) {
				pod := podOf(fmt.Sprintf("on-%d-%d", i, k), 10)
				pod.Labels, pod.Spec.NodeName = letter(), n.Name
				pod.Labels["v"] = fmt.Sprint(r.IntN(2))
				objects = append(objects, pod)
			}
		}
		for i := range 12 {
			objects = append(objects, spreadPod(r, fmt.Sprint("pod-", i), letter))
		}

		w, err := simulate.Open(manifest.Assemble("test", objects), simulate.Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		m := newMaker(w, c, Options{})
		w.Settle()
		d := &demand{world: w, offers: c.Offers, limit: m.limit}
		waiting := m.pending()
		d.sort(c, distinguishingKeys(w, waiting))
		d.measure(waiting)
		over := d.suppose()
		d.spreads = newSpreads(w, waiting, isTrial)
		takes := d.takers()
		for _, p := range waiting {
			got, _ := takes(p)
			want, _ := d.ask(p)
			if !slices.Equal(got, want) {
				t.Errorf("seed %d: pod %s can go into %v, and the engine says %v:\n%v", seed, p.Name(), got, want, p.Class.Spec.TopologySpreadConstraints)
			}
			if len(want) < len(c.Offers) {
				narrowed++
			}
		}
		over()
	}
	if narrowed < 50 {
		t.Errorf("constraints keep %d pods from a kind only: the worlds show little", narrowed)
	}
}

// spreadPod returns a pod with up to two random spread constraints, and sometimes a node selector.
// It is so large that it fits only on an empty node.
func spreadPod(r *rand.Rand, name string, letter func() map[string]string) *v1.Pod {
	pod := podOf(name, int64(7000+100*r.IntN(10)))
	pod.Labels = letter()
	pod.Labels["v"] = fmt.Sprint(r.IntN(2))
	for range r.IntN(3) {
		s := v1.TopologySpreadConstraint{
			MaxSkew: int32(1 + r.IntN(2)), TopologyKey: []string{v1.LabelTopologyZone, v1.LabelHostname}[r.IntN(2)],
			WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: letter()},
		}
		switch r.IntN(8) {
		case 0:
			s.WhenUnsatisfiable = v1.ScheduleAnyway
		case 1:
			s.MinDomains = ptr.To[int32](4)
		case 2:
			s.MatchLabelKeys = []string{"v"}
		case 3:
			s.NodeAffinityPolicy = ptr.To(v1.NodeInclusionPolicyIgnore)
		case 4:
			s.LabelSelector = &metav1.LabelSelector{}
		}
		if !slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(o v1.TopologySpreadConstraint) bool {
			return o.TopologyKey == s.TopologyKey && o.WhenUnsatisfiable == s.WhenUnsatisfiable
		}) {
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, s)
		}
	}
	if r.IntN(4) == 0 {
		pod.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: string(rune('a' + r.IntN(3)))}
	}
	return pod
}
