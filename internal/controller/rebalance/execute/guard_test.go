// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/response"
)

// guardStage drives a Guard, and stores what it writes.
type guardStage struct {
	*testing.T
	guard   *Guard
	now     time.Time
	actions []Action
}

func newGuardStage(t *testing.T) *guardStage {
	return &guardStage{T: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		guard: NewGuard(GuardOptions{Options: evictionguard.DefaultOptions()})}
}

func (s *guardStage) step(event Event) { s.actions = append(s.actions, s.guard.Step(s.now, event)...) }

// heldPod returns a ready pod of the ReplicaSet "web" in the namespace whose eviction is held.
func (s *guardStage) heldPod(namespace, name string) *v1.Pod {
	p := podOf(namespace, name, types.UID(namespace+"/web"))
	p.Spec.NodeName = "a"
	p.Annotations = map[string]string{evictionguard.RequestedAnnotation: s.now.Format(time.RFC3339)}
	p.Status = v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}
	return p
}

// workload returns a ReplicaSet without a Deployment.
func workloadOf(namespace string, replicas int32, note string) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: types.UID(namespace + "/web")},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas}}
	if note != "" {
		rs.Labels = map[string]string{rebalance.SurgeLabel: note}
	}
	return rs
}

// departureFor returns the pod's entry in a plan that surges it.
func departureFor(p *v1.Pod) rebalance.Departure {
	return rebalance.Departure{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Owner: "ReplicaSet/web", From: "a", To: "b",
		Surge: &rebalance.Surge{Scaled: rebalance.Scaled{Kind: "ReplicaSet", Namespace: p.Namespace, Name: "web",
			UID: p.OwnerReferences[0].UID}, Replicas: 1}}
}

// last returns the last action of a type, or fails.
func last[A Action](s *guardStage) (a A) {
	s.Helper()
	for i := len(s.actions) - 1; i >= 0; i-- {
		if found, ok := s.actions[i].(A); ok {
			return found
		}
	}
	s.Fatalf("no %T in %d actions", a, len(s.actions))
	return a
}

func TestAHeldPodLeavesOnceItsReplacementIsReady(t *testing.T) {
	s := newGuardStage(t)
	victim := s.heldPod("shop", "web-1")
	s.step(Seen{Object: workloadOf("shop", 1, "")})
	s.step(Seen{Object: victim})
	s.step(Listed{})
	s.now = s.now.Add(collectsFor)
	s.step(Tick{})
	if plan := last[PlanDrain](s); !plan.Leaving.Only[victim.UID] || !plan.Leaving.Surge {
		t.Fatalf("plan of %+v", plan.Leaving)
	}
	s.step(DrainPlanned{Plan: &rebalance.Draining{Pods: []rebalance.Departure{departureFor(victim)}}})
	raise := last[Scale](s)
	if raise.From != 1 || raise.To != 2 || raise.After == "" {
		t.Fatalf("the scale: %+v", raise)
	}
	s.step(Answered{Ticket: raise.Ticket, Outcome: response.OK})
	s.step(Seen{Object: workloadOf("shop", 2, raise.After)})
	s.step(Answered{Ticket: last[Mark](s).Ticket, Outcome: response.OK})

	next := s.heldPod("shop", "web-2")
	next.Annotations, next.Spec.NodeName, next.Status.Conditions[0].Status = nil, "b", v1.ConditionFalse
	s.now = s.now.Add(2 * time.Second)
	s.step(Seen{Object: next})
	for _, a := range s.actions {
		if _, ok := a.(SetStatus); ok {
			t.Errorf("a status is written early: %+v", a)
		}
	}
	s.now = s.now.Add(statusAfter)
	s.step(Tick{})
	if status := last[SetStatus](s); status.UID != victim.UID || !strings.Contains(status.Status, "web-2 on b is ready") {
		t.Errorf("the status: %+v", status)
	}
	for _, a := range s.actions {
		if scale, ok := a.(Scale); ok && scale.To < scale.From {
			t.Error("the pod is to be removed before its replacement is ready")
		}
	}
	next = next.DeepCopy()
	next.Status.Conditions[0].Status = v1.ConditionTrue
	s.step(Seen{Object: next})
	if lower := last[Scale](s); lower.From != 2 || lower.To != 1 || lower.Before != raise.After {
		t.Fatalf("the scale: %+v", lower)
	}
	s.step(Answered{Ticket: last[Scale](s).Ticket, Outcome: response.OK})
	s.step(Seen{Object: workloadOf("shop", 1, "")})
	s.step(Gone{Object: victim})
	if done := last[DrainProgress](s); done.Result != Replaced || len(s.guard.held)+len(s.guard.surges.list) > 0 {
		t.Errorf("%+v; %d pods are held, with %d surges", done, len(s.guard.held), len(s.guard.surges.list))
	}
}

func TestPodsThatCannotSurgeAreAdmitted(t *testing.T) {
	s := newGuardStage(t)
	victim := s.heldPod("shop", "web-1")
	s.step(Seen{Object: victim})
	s.step(Listed{})
	d := departureFor(victim)
	d.Surge, d.NoSurge = nil, "its Deployment recreates its pods"
	s.step(DrainPlanned{Plan: &rebalance.Draining{Pods: []rebalance.Departure{d}}})
	if status := last[SetStatus](s).Status; status != "admitted: its Deployment recreates its pods" {
		t.Errorf("the status: %q", status)
	}
}

// holdMany holds pods of as many workloads of the namespace "hostile", and returns their plan.
func (s *guardStage) holdMany(count int) *rebalance.Draining {
	plan := &rebalance.Draining{}
	for i := range count {
		p := s.heldPod(fmt.Sprintf("hostile-%d", i), "web-1")
		p.Namespace = "hostile" // many workloads of one namespace
		p.OwnerReferences[0].UID = types.UID(fmt.Sprint("hostile/web-", i))
		p.UID = types.UID(fmt.Sprint("hostile-", i))
		p.Name = fmt.Sprint("web-", i)
		s.step(Seen{Object: p})
		rs := workloadOf("hostile", 1, "")
		rs.Name, rs.UID = p.Name, p.OwnerReferences[0].UID
		s.step(Seen{Object: rs})
		d := departureFor(p)
		d.Surge.Name = p.Name
		plan.Pods = append(plan.Pods, d)
	}
	return plan
}

// stall begins as many surges as possible for pods of so many workloads, and returns their plan. No
// replacement is created.
func (s *guardStage) stall(count int) *rebalance.Draining {
	plan := s.holdMany(count)
	s.step(Listed{})
	s.step(DrainPlanned{Plan: plan})
	for _, a := range s.actions {
		if scale, ok := a.(Scale); ok {
			s.step(Answered{Ticket: scale.Ticket, Outcome: response.OK})
			rs := workloadOf("hostile", scale.To, scale.After)
			rs.Name, rs.UID = scale.Target.Name, scale.Target.UID
			s.step(Seen{Object: rs})
			s.step(Answered{Ticket: last[Mark](s).Ticket, Outcome: response.OK})
		}
	}
	return plan
}

// TestAnEventIsCheapDuringManySurges shows a Guard a pod of another workload. A cluster has many
// events while many pods are replaced, so an event must not cause a look at every surge.
func TestAnEventIsCheapDuringManySurges(t *testing.T) {
	s := newGuardStage(t)
	s.stall(fewestSurges)
	for range 2 { // the statuses are written
		s.step(Tick{})
	}
	other := s.heldPod("shop", "web-1")
	other.Annotations = nil
	if allocs := testing.AllocsPerRun(100, func() { s.guard.Step(s.now, Seen{Object: other}) }); allocs > fewestSurges {
		t.Errorf("%v allocations for an event, with %d surges", allocs, len(s.guard.surges.list))
	}
}

// raised counts the workloads scaled up, by namespace.
func (s *guardStage) raised() map[string]int {
	raised := map[string]int{}
	for _, a := range s.actions {
		if scale, ok := a.(Scale); ok && scale.To > scale.From {
			raised[scale.Target.Namespace]++
		}
	}
	return raised
}

func TestAGuardIsSpreadOverNamespaces(t *testing.T) {
	for others, want := range []int{fewestSurges, fewestSurges / 2} {
		s := newGuardStage(t)
		plan := s.holdMany(40)
		if others > 0 {
			other := s.heldPod("shop", "web-1")
			s.step(Seen{Object: other})
			plan.Pods = append(plan.Pods, departureFor(other))
		}
		s.step(Listed{})
		s.step(DrainPlanned{Plan: plan})
		if raised := s.raised(); raised["shop"] != others || raised["hostile"] != want {
			t.Errorf("surges by namespace: %v, want %d of the hostile one", raised, want)
		}
	}
}

// TestAStalledSurgeYieldsToAnotherNamespace covers a namespace that has all surges, with
// replacements that are never ready, when a pod of another namespace is evicted.
func TestAStalledSurgeYieldsToAnotherNamespace(t *testing.T) {
	s := newGuardStage(t)
	plan := s.stall(40)
	s.now = s.now.Add(failsFor)
	other := s.heldPod("shop", "web-1")
	s.step(Seen{Object: other})
	plan.Pods = append(plan.Pods[fewestSurges:], departureFor(other))
	for range 6 { // a surge is undone, and the other pod is replaced
		s.step(Tick{})
		s.step(DrainPlanned{Plan: plan})
		for _, a := range s.actions {
			switch a := a.(type) {
			case Scale:
				s.step(Answered{Ticket: a.Ticket, Outcome: response.OK})
			case Mark:
				s.step(Answered{Ticket: a.Ticket, Outcome: response.OK})
			}
		}
		s.now = s.now.Add(plansAgain)
	}
	if raised := s.raised(); raised["shop"] != 1 || raised["hostile"] != fewestSurges {
		t.Errorf("surges by namespace: %v", raised)
	}
}

// TestAStatusThatIsNotStoredIsWrittenRarely covers a policy that strips the annotation.
func TestAStatusThatIsNotStoredIsWrittenRarely(t *testing.T) {
	s := newGuardStage(t)
	victim := s.heldPod("shop", "web-1")
	s.step(Seen{Object: victim})
	s.step(Listed{})
	d := departureFor(victim)
	d.Surge, d.Waits = nil, "its Deployment is being rolled out"
	plan := &rebalance.Draining{Pods: []rebalance.Departure{d}}
	answered := 0
	for range 300 { // five minutes
		s.now = s.now.Add(time.Second)
		s.step(Tick{})
		for ; answered < len(s.actions); answered++ {
			if _, ok := s.actions[answered].(PlanDrain); ok {
				s.step(DrainPlanned{Plan: plan})
			}
		}
		s.step(Seen{Object: victim})
	}
	writes, plans := 0, 0
	for _, a := range s.actions {
		switch a.(type) {
		case SetStatus:
			writes++
		case PlanDrain:
			plans++
		}
	}
	if writes < 2 || writes > 40 || plans > 70 {
		t.Errorf("%d writes and %d plans in five minutes", writes, plans)
	}
}

// TestAGuardUndoesTheSurgeOfAnEarlierProcess covers a process killed after the scale was raised.
func TestAGuardUndoesTheSurgeOfAnEarlierProcess(t *testing.T) {
	s := newGuardStage(t)
	victim := s.heldPod("shop", "web-1")
	note := surgeNote{1, victim.UID, s.now.Unix(), 0}.String()
	s.step(Seen{Object: workloadOf("shop", 2, note)})
	s.step(Seen{Object: victim})
	s.step(Listed{})
	s.step(Tick{})
	keep := last[Mark](s)
	if !keep.Keep {
		t.Fatalf("%+v", keep)
	}
	s.step(Answered{Ticket: keep.Ticket, Outcome: response.OK})
	if lower := last[Scale](s); lower.To != 1 || lower.Before != note {
		t.Errorf("the scale: %+v", lower)
	}
}

// TestReasonsOfAHeldPodAreWrittenSeldom covers a pod whose reason changes with each plan, and which
// is then admitted.
func TestReasonsOfAHeldPodAreWrittenSeldom(t *testing.T) {
	s := newGuardStage(t)
	victim := s.heldPod("shop", "web-1")
	s.step(Seen{Object: victim})
	s.step(Listed{})
	written := func() (list []string) {
		for _, a := range s.actions {
			if status, ok := a.(SetStatus); ok {
				list = append(list, status.Status)
			}
		}
		return list
	}
	decide := func(status string) {
		s.guard.setStatus(victim.UID, status)
		s.step(Tick{})
		if list := written(); len(list) > 0 {
			victim = victim.DeepCopy()
			victim.Annotations[evictionguard.StatusAnnotation] = list[len(list)-1]
			victim.Annotations[evictionguard.RepeatedAnnotation] = s.now.UTC().Format(time.RFC3339)
			s.step(Seen{Object: victim})
		}
		s.now = s.now.Add(5 * time.Second)
	}
	for i := range 24 { // two minutes
		decide(fmt.Sprint(evictionguard.Held, "reason ", i))
	}
	if list := written(); len(list) < 3 || len(list) > 4 {
		t.Errorf("%d statuses within two minutes: %q", len(list), list)
	}
	for _, status := range []string{evictionguard.Admitted + "the pod may go", evictionguard.Held + "no place yet"} {
		decide(status) // within the time between two reasons
		if list := written(); list[len(list)-1] != status {
			t.Errorf("the last status is not %q: %q", status, list)
		}
	}
}

// TestAnAdmissionEndsWithItsProof covers a pod that is admitted while plans prove a place for its
// replacement, and whose evictor is refused by a budget or gives up. After a minute no plan
// includes the pod, and the next eviction is held until its place is proven again.
func TestAnAdmissionEndsWithItsProof(t *testing.T) {
	s := newGuardStage(t)
	s.guard.options.Fallback = evictionguard.Place
	victim := s.heldPod("shop", "web-1")
	s.step(Seen{Object: victim})
	s.step(Listed{})
	d := departureFor(victim)
	d.Surge, d.NoSurge, d.To = nil, "it has a volume of one node", "node-2"
	see := func(status string) {
		victim = victim.DeepCopy()
		victim.Annotations[evictionguard.StatusAnnotation] = status
		s.step(Seen{Object: victim})
	}
	s.step(DrainPlanned{Plan: &rebalance.Draining{Pods: []rebalance.Departure{d}}})
	see(last[SetStatus](s).Status)
	const admitted = evictionguard.Admitted + "its replacement fits on node-2"
	for begun := s.now; s.now.Sub(begun) < evictionguard.RepeatsWithin-time.Second; s.now = s.now.Add(time.Second) {
		s.step(Tick{})
		if status := last[SetStatus](s).Status; status != admitted {
			t.Fatalf("the status after %v: %q", s.now.Sub(begun), status)
		}
	}
	s.now = s.now.Add(5 * time.Second)
	s.step(Tick{})
	if status := last[SetStatus](s).Status; !strings.HasPrefix(status, evictionguard.Held) {
		t.Fatalf("the status without plans: %q", status)
	}
	see(last[SetStatus](s).Status)
	victim.Annotations[evictionguard.RepeatedAnnotation] = s.now.UTC().Format(time.RFC3339) // by the webhook
	see(victim.Annotations[evictionguard.StatusAnnotation])
	s.now = s.now.Add(time.Second)
	s.step(Tick{})
	s.step(DrainPlanned{Plan: &rebalance.Draining{Pods: []rebalance.Departure{d}}})
	if status := last[SetStatus](s).Status; status != admitted {
		t.Errorf("the status after another eviction: %q", status)
	}
}

// TestTheGuardDoesNotRepeatTheSurgeOfADrain covers a drain with --surge of a node with a held pod.
func TestTheGuardDoesNotRepeatTheSurgeOfADrain(t *testing.T) {
	s := newGuardStage(t)
	drained, victim := s.heldPod("shop", "web-1"), s.heldPod("shop", "web-2")
	drained.Annotations = nil
	s.step(Seen{Object: workloadOf("shop", 3, surgeNote{2, drained.UID, s.now.Unix(), 0}.String())})
	s.step(Seen{Object: drained})
	s.step(Seen{Object: victim})
	s.step(Listed{})
	for range 300 { // five minutes
		s.now = s.now.Add(time.Second)
		s.step(Tick{})
		if s.guard.planning {
			s.step(DrainPlanned{Plan: &rebalance.Draining{Pods: []rebalance.Departure{departureFor(victim)}}})
		}
	}
	for _, a := range s.actions {
		if scale, ok := a.(Scale); ok {
			t.Fatalf("the scale is changed: %+v", scale)
		}
	}
	if status := last[SetStatus](s); status.Status != "held: another run is replacing a pod of ReplicaSet/web" {
		t.Errorf("the status: %q", status.Status)
	}
	// The drain has ended.
	s.step(Seen{Object: workloadOf("shop", 2, "")})
	s.now = s.now.Add(plansAgain)
	s.step(Tick{})
	s.step(DrainPlanned{Plan: &rebalance.Draining{Pods: []rebalance.Departure{departureFor(victim)}}})
	if raise := last[Scale](s); raise.From != 1 || raise.To != 2 { // as planned
		t.Errorf("the scale: %+v", raise)
	}
}
