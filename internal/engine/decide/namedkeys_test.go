// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestLooksBySelectorsKeys verifies that pods with a unique label, like the pods of a StatefulSet,
// share a look until a selector names the label's key. It also verifies decisions afterwards,
// including decisions after more than mostNamed keys are named, so that all labels count.
func TestLooksBySelectorsKeys(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c := benchCluster(40, false)
		d := New(c, plugins.Default(), seed)
		keys := []int{4, 2 * mostNamed}[seed%2]
		label := func() (key, value string) { return fmt.Sprint("key-", rng.IntN(keys)), fmt.Sprint(rng.IntN(3)) }

		seen := struct{ shared, all bool }{}
		for i := range 400 {
			pod := benchPod(0, []string{"plain", "spread", "affinity", "anti"}[rng.IntN(4)])
			pod.Name, pod.UID = fmt.Sprint("web-", i), types.UID(fmt.Sprint(i))
			pod.Labels["pod-name"] = pod.Name
			for range rng.IntN(2) {
				key, value := label()
				pod.Labels[key] = value
			}
			if rng.IntN(3) == 0 {
				key, value := label()
				operator := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn}[rng.IntN(2)]
				name(pod, &metav1.LabelSelector{
					MatchLabels:      map[string]string{"app": pod.Labels["app"]},
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: []string{value}}},
				})
			}

			p := c.Pending(pod)
			decision := d.Decide(p)
			holds(t, c, d, p, decision)
			if decision.Node != nil {
				c.Place(p, decision.Node)
			}
			if rng.IntN(3) == 0 {
				c.RemovePod(types.UID(fmt.Sprint(rng.IntN(i + 1))))
			}

			d.ix.followLog()
			seen.shared = seen.shared || c.Pods() > 20 && d.ix.placed.looks.Len() < c.Pods()/2
			seen.all = seen.all || d.ix.placed.named.all
		}
		if !seen.shared || seen.all != (keys > mostNamed) {
			t.Errorf("seed %d: %+v, with %d looks of %d pods", seed, seen, d.ix.placed.looks.Len(), c.Pods())
		}
	}
}

// TestLookOfPodsThatAreGone verifies that a label of a look's class does not count after its key is
// named, if no remaining pod of the look has the label.
func TestLookOfPodsThatAreGone(t *testing.T) {
	c := benchCluster(1, false)
	d := New(c, plugins.Default(), 1)
	pod := func(name string, labels map[string]string) *v1.Pod {
		pod := benchPod(0, "anti")
		pod.Name, pod.UID = name, types.UID(name)
		for key, value := range labels {
			pod.Labels[key] = value
		}
		return pod
	}
	for _, placed := range []*v1.Pod{pod("first", map[string]string{"track": "old"}), pod("second", nil)} {
		placed.Spec.Affinity, placed.Spec.NodeName = nil, "node-0"
		c.SetPod(placed)
	}
	d.Decide(c.Pending(pod("follows", nil)))
	c.RemovePod("first")

	apart := pod("apart", nil)
	name(apart, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "app-0"}, MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "track", Operator: metav1.LabelSelectorOpExists}, // looks are searched by the label app
	}})
	p := c.Pending(apart)
	decision := d.Decide(p)
	holds(t, c, d, p, decision)
	if decision.Node == nil {
		t.Errorf("a pod that is gone keeps another away: %v", decision)
	}
}

// name sets the selector of all constraints and terms of the pod.
func name(pod *v1.Pod, selector *metav1.LabelSelector) {
	if spread := pod.Spec.TopologySpreadConstraints; spread != nil {
		spread[len(spread)-1].LabelSelector = selector
	}
	a := pod.Spec.Affinity
	if a != nil && a.PodAffinity != nil {
		for i := range a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm.LabelSelector = selector
		}
	}
	if a != nil && a.PodAntiAffinity != nil {
		for i := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i].LabelSelector = selector
		}
	}
}
