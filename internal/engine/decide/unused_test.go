// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestWhatLargePodsLeaveIsDropped verifies that the data of deleted large pods and budgets is
// dropped even without new pods that would trigger a size limit. Decisions are correct regardless
// of when the data is dropped.
func TestWhatLargePodsLeaveIsDropped(t *testing.T) {
	r, c := rand.New(rand.NewPCG(1, 2)), benchCluster(5, false)
	d := New(c, plugins.Default(), 1)
	drop := func() {
		c.DropUnused()
		d.DropUnused()
	}
	plain := c.Pending(benchPod(0, "plain"))
	d.Decide(plain)
	before := heap()

	large := func(i, words int) *metav1.LabelSelector {
		of := metav1.LabelSelectorRequirement{Key: fmt.Sprint("app-", i), Operator: metav1.LabelSelectorOpIn}
		for k := range words {
			of.Values = append(of.Values, fmt.Sprintf("word-%d-%06d", i, k))
		}
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{of}}
	}
	there := map[types.UID]bool{}
	for i := range 60 {
		pod := towards(fmt.Sprint("large-", i%12), func(p *v1.Pod) {
			p.Labels = map[string]string{fmt.Sprint("app-", i%12): "word-1-000001"}
			p.Spec.NodeName = fmt.Sprint("node-", r.IntN(5))
			p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{
				aTerm(v1.LabelTopologyZone, large(i%12, 15_000)),
			}
		})
		switch {
		case there[pod.UID]:
			c.RemovePod(pod.UID)
		case r.IntN(2) == 0:
			c.SetPod(pod)
		}
		there[pod.UID] = !there[pod.UID] && c.Pod(pod.UID) != nil
		pending := pod.DeepCopy()
		pending.Spec.NodeName, pending.UID = "", "pending"
		p := c.Pending(pending)
		holds(t, c, d, p, d.Decide(p))
		if r.IntN(4) == 0 {
			drop()
		}
		holds(t, c, d, plain, d.Decide(plain))
	}

	for i := range 5 {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("b-", i)}}
		budget.Spec.Selector = large(i, 100_000)
		c.Budgets.Set(budget)
	}
	d.Preempt(plain)
	c.BudgetsOf(plain.Class)
	for i := range 5 {
		c.Budgets.Delete("default", fmt.Sprint("b-", i))
	}
	for uid, is := range there {
		if is {
			c.RemovePod(uid)
		}
	}
	kept := heap() - before
	for range 3 {
		drop()
		d.Decide(plain)
	}
	if left := heap() - before; left > 1<<20 || kept < 20<<20 {
		t.Errorf("%d KiB of %d are left", left>>10, kept>>10)
	}
	holds(t, c, d, plain, d.Decide(plain))
	runtime.KeepAlive(d)
}
