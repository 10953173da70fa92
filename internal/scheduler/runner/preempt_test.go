// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// slow gives the pod a long grace period.
func slow(pod *v1.Pod) *v1.Pod {
	grace := int64(30)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	return pod
}

func (w *world) pod(name string) *v1.Pod {
	w.Helper()
	for _, p := range w.api.Pods() {
		if p.Name == name {
			return p
		}
	}
	w.Fatalf("no pod %s", name)
	return nil
}

func hasCondition(p *v1.Pod, kind v1.PodConditionType, reason, message string) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Reason == reason && c.Message == message && c.ObservedGeneration == p.Generation
		}
	}
	return false
}

// TestVictimsAreRemovedOnce verifies that every victim gets the DisruptionTarget condition and is
// deleted once, even if that takes long and other events occur. The preemptor waits with a
// nominated node, and is bound when the victims have ended.
func TestVictimsAreRemovedOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		var deletes atomic.Int32
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if r.Method == http.MethodDelete {
				deletes.Add(1)
				return fakeapi.Fault{Late: 20 * time.Second}
			}
			return fakeapi.Fault{}
		})
		changed := on(slow(aPod("v1", "1")), "n")
		changed.Generation = 7
		w.api.Put(aNode("n", "2"), aNode("m", "2"), changed, on(slow(aPod("v2", "1")), "n"))
		for _, name := range []string{"w1", "w2"} { // pods of higher priority are no victims
			w.api.Put(on(slow(withPriority(aPod(name, "500m"), 20)), "m"))
		}
		w.api.Put(on(slow(withPriority(aPod("w3", "1"), 5)), "m"))
		w.api.Put(withPriority(aPod("p", "2"), 10))
		w.start(Options{})
		w.until("p is nominated", func() bool { return w.pod("p").Status.NominatedNodeName == "n" })
		w.api.Delete(aPod("w1", "1")) // causes another attempt of p
		w.pass(15 * time.Second)
		w.api.Put(aPod("q", "100m"))
		w.pass(time.Minute)
		if n := deletes.Load(); n != 2 {
			t.Errorf("%d deletes for two victims", n)
		}
		for _, name := range []string{"v1", "v2"} {
			v := w.pod(name)
			if v.DeletionTimestamp == nil || !hasCondition(v, v1.DisruptionTarget, v1.PodReasonPreemptionByScheduler, "default-scheduler: preempting to accommodate a higher priority pod") {
				t.Errorf("%s: leaves %v, %+v", name, v.DeletionTimestamp, v.Status.Conditions)
			}
		}
		if !strings.Contains(w.condition("p"), "Insufficient cpu") || w.nodeOf("p") != "" {
			t.Errorf("p was told %q and is on %q", w.condition("p"), w.nodeOf("p"))
		}
		w.api.Delete(aPod("v1", "1"))
		w.api.Delete(aPod("v2", "1"))
		w.untilBound("p")
		if w.nodeOf("p") != "n" || w.pod("p").Status.NominatedNodeName != "" {
			t.Errorf("p is on %s", w.nodeOf("p"))
		}
		w.do(func() {
			if w.s.core.View().Cluster.Nominations() != 0 || len(w.s.core.Books().Leaving)+len(w.s.core.Books().Preemptor) != 0 {
				t.Errorf("%d nominated, %v, %v", w.s.core.View().Cluster.Nominations(), w.s.core.Books().Leaving, w.s.core.Books().Preemptor)
			}
		})
	})
}

// TestVictimThatCannotBeRemoved verifies that a preemption is retried if a victim cannot be
// removed.
func TestVictimThatCannotBeRemoved(t *testing.T) {
	for _, method := range []string{http.MethodPatch, http.MethodDelete} {
		inWorld(t, func(w *world) {
			w.api.SetFault(times(3, func(r *http.Request) bool { return r.Method == method && strings.Contains(r.URL.Path, "/pods/v") }, fakeapi.Fault{Status: 500}))
			w.api.Put(aNode("n", "1"), on(aPod("v", "1"), "n"), withPriority(aPod("p", "1"), 10))
			w.start(Options{})
			w.untilBound("p")
		})
	}
}

// TestLowerNominatedPodMovesOn verifies that a nominated pod loses its nomination if a pod of
// higher priority is nominated to the same node.
func TestLowerNominatedPodMovesOn(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n", "1"), on(slow(aPod("v", "1")), "n"), withPriority(aPod("low", "1"), 5))
		w.start(Options{})
		w.until("low is nominated", func() bool { return w.pod("low").Status.NominatedNodeName == "n" })
		w.api.Put(withPriority(aPod("high", "1"), 10))
		w.until("high is nominated", func() bool { return w.pod("high").Status.NominatedNodeName == "n" })
		w.until("low is not", func() bool { return w.pod("low").Status.NominatedNodeName == "" })
		w.api.Delete(aPod("v", "1"))
		w.untilBound("high")
	})
}

// TestNominationEnds verifies that a nomination ends when another pod has taken the resources, and
// there are no victims any more.
func TestNominationEnds(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n", "1"), on(slow(aPod("v", "1")), "n"), withPriority(aPod("p", "1"), 5))
		w.start(Options{})
		w.until("p is nominated", func() bool { return w.pod("p").Status.NominatedNodeName == "n" })
		w.api.Put(on(withPriority(aPod("by hand", "1"), 50), "n"))
		w.api.Delete(aPod("v", "1"))
		w.until("p is not nominated", func() bool { return w.pod("p").Status.NominatedNodeName == "" })
		w.do(func() {
			if w.s.core.View().Cluster.Nominations() != 0 {
				t.Error("the node is still kept for it")
			}
		})
	})
}

// TestNominatedPodIsAGuestAsItIsNow verifies that if the labels of a nominated pod change,
// decisions about other pods use the changed labels.
func TestNominatedPodIsAGuestAsItIsNow(t *testing.T) {
	inWorld(t, func(w *world) {
		p := withPriority(aPod("p", "1"), 5)
		w.api.Put(aNode("n", "1"), on(slow(aPod("v", "1")), "n"), p)
		w.start(Options{})
		w.until("p is nominated", func() bool { return w.pod("p").Status.NominatedNodeName == "n" })
		fakeapi.Change(w.api, p, func(p *v1.Pod) { p.Labels = map[string]string{"app": "changed"} })
		w.until("the change is known", func() bool {
			known := false
			w.do(func() {
				guests := w.s.core.View().Cluster.Node("n").Nominated
				known = len(guests) == 1 && guests[0].Class.Labels.Get("app") == "changed"
			})
			return known
		})
	})
}

// TestPodOnItsWayIsPreemptedInMemory verifies that a victim waiting at Permit is not deleted, but
// only loses its place.
func TestPodOnItsWayIsPreemptedInMemory(t *testing.T) {
	inWorld(t, func(w *world) {
		o := &outsider{name: "O", wait: time.Hour}
		w.api.Put(aNode("n", "1"), aPod("v", "1"))
		w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
		w.until("v waits", func() bool { return w.s.WaitingPod("uid-v") != nil })
		o.set(func() { o.wait = 0 })
		w.api.Put(withPriority(aPod("p", "1"), 10))
		w.untilBound("p")
		if v := w.pod("v"); v.DeletionTimestamp != nil || hasCondition(v, v1.DisruptionTarget, v1.PodReasonPreemptionByScheduler, "") {
			t.Errorf("v was deleted: %+v", v.Status)
		}
	})
}

// TestBudgetsThatPreemptionMustNotBreak verifies that if the profile has KeepBudgets, the
// preemption waits until the PodDisruptionBudget allows it.
func TestBudgetsThatPreemptionMustNotBreak(t *testing.T) {
	for _, keep := range []bool{false, true} {
		inWorld(t, func(w *world) {
			victim := on(aPod("v", "1"), "n")
			victim.Labels = map[string]string{"app": "v"}
			budget := &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: victim.Labels}},
			}
			w.api.Put(aNode("n", "1"), victim, budget, withPriority(aPod("p", "1"), 10))
			profile := plugins.Default()
			profile.KeepBudgets = keep
			w.start(Options{Profiles: []cycle.Profile{{Profile: profile}}})
			if !keep {
				w.untilBound("p")
				return
			}
			w.pass(time.Hour)
			if w.nodeOf("p") != "" || w.nodeOf("v") != "n" {
				t.Fatalf("p on %q, v on %q", w.nodeOf("p"), w.nodeOf("v"))
			}
			fakeapi.Change(w.api, budget, func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = 1 })
			w.pass(15 * time.Second)
			if w.nodeOf("p") != "n" {
				t.Errorf("the budget allows it, and p was told %q", w.condition("p"))
			}
		})
	}
}

// TestANominationThatIsOfNoUseIsGivenUp verifies that if a pod is nominated, here by another
// client, to a node on which it cannot fit, the nomination is removed, so that other pods can use
// the node.
func TestANominationThatIsOfNoUseIsGivenUp(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(Options{})
		big := withPriority(aPod("big", "4"), 10)
		w.api.Put(aNode("n1", "2"), big)
		w.until("big waits", func() bool { return w.condition("big") != "" })
		fakeapi.Change(w.api, big, func(p *v1.Pod) { p.Status.NominatedNodeName = "n1" })
		w.pass(time.Second)
		w.api.Put(aPod("small", "1"))
		w.pass(20 * time.Second)
		if n := w.nodeOf("small"); n != "n1" {
			t.Errorf("small is on %q", n)
		}
		for _, p := range w.api.Pods() {
			if p.Status.NominatedNodeName != "" {
				t.Errorf("%s is still nominated to %s", p.Name, p.Status.NominatedNodeName)
			}
		}
	})
}
