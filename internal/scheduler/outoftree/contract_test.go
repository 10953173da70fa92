// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

func unpaid(p *v1.Pod) *fwk.Status {
	if p.Annotations["paid"] == "" {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "not paid")
	}
	return nil
}

func podUpdates() ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update}}}, nil
}

// TestAPluginThatRegistersNothingIsAskedAgainInTime verifies that the rejected pod is retried after
// five minutes in the queue, and that no event wakes it earlier.
func TestAPluginThatRegistersNothingIsAskedAgainInTime(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true, enqueue: unpaid}
	inWorld(t, everywhere, []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 4)
		p := pod("p", "1")
		w.api.Put(p)
		w.expect(time.Minute, "p waits")
		w.taken()
		fakeapi.Change(w.api, p, func(p *v1.Pod) { p.Annotations = map[string]string{"paid": "yes"} })
		w.expect(3*time.Minute, "p waits")
		if calls := w.taken(); calls != "" {
			t.Errorf("it is asked again: %s", calls)
		}
		w.expect(2*time.Minute, "p on n1")
	})
}

// TestAPluginThatRegistersPodUpdatesHearsAllOfThem verifies that hints get all updates of the
// rejected pod and of placed pods, including updates of fields irrelevant to Berth's own decisions.
func TestAPluginThatRegistersPodUpdatesHearsAllOfThem(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true, filter: func(_ fwk.CycleState, p *v1.Pod, _ fwk.NodeInfo) *fwk.Status {
		if p.Name == "p" {
			return fwk.NewStatus(fwk.Unschedulable, "closed")
		}
		return nil
	}}
	a.events = func() ([]fwk.ClusterEventWithHint, error) {
		return []fwk.ClusterEventWithHint{{
			Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update},
			QueueingHintFn: func(_ klog.Logger, _ *v1.Pod, old, now any) (fwk.QueueingHint, error) {
				was, is := old.(*v1.Pod), now.(*v1.Pod)
				a.note("%s: %s%s to %s%s", is.Name, was.Annotations["note"], was.Status.Reason, is.Annotations["note"], is.Status.Reason)
				return fwk.QueueSkip, nil
			},
		}}, nil
	}
	inWorld(t, everywhere, []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 4)
		placed, p := pod("placed", "1"), pod("p", "1")
		w.api.Put(placed, p)
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls := w.taken(); strings.Contains(calls, "placed: ") {
			t.Errorf("the binding is no update: %s", calls)
		}
		for _, step := range []struct {
			pod    *v1.Pod
			change func(*v1.Pod)
			want   string
		}{
			{p, func(p *v1.Pod) { p.Annotations = map[string]string{"note": "one"} }, "p:  to one"},
			{p, func(p *v1.Pod) { p.Status.Reason = "two" }, "p: one to onetwo"},
			{placed, func(p *v1.Pod) { p.Annotations = map[string]string{"note": "three"} }, "placed:  to three"},
			{placed, func(p *v1.Pod) { p.Status.Reason = "four" }, "placed: three to threefour"},
			{placed, func(p *v1.Pod) { p.Labels = map[string]string{"l": "v"} }, "placed: threefour to threefour"},
		} {
			fakeapi.Change(w.api, step.pod, step.change)
			time.Sleep(time.Second)
			synctest.Wait()
			if got := w.taken(); got != step.want {
				t.Errorf("got %q, want %q", got, step.want)
			}
		}
	})
}

// asks is a fakePlugin whose function for Permit also gets the context and the state.
type asks struct {
	*fakePlugin
	permit func(ctx context.Context, state fwk.CycleState, p *v1.Pod) (*fwk.Status, time.Duration)
}

func (a asks) Permit(ctx context.Context, state fwk.CycleState, p *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	return a.permit(ctx, state, p)
}

// TestTheContextOfPermitEndsWithTheSchedulingCycle verifies that the context ends even if the pod
// waits at Permit.
func TestTheContextOfPermitEndsWithTheSchedulingCycle(t *testing.T) {
	for _, verdict := range []fwk.Code{fwk.Success, fwk.Wait, fwk.Unschedulable} {
		var given context.Context
		a := asks{&fakePlugin{name: "A", quiet: true}, func(ctx context.Context, _ fwk.CycleState, _ *v1.Pod) (*fwk.Status, time.Duration) {
			given = ctx
			if ctx.Err() != nil {
				t.Errorf("it has ended when Permit is asked: %v", ctx.Err())
			}
			return fwk.NewStatus(verdict), time.Minute
		}}
		inWorld(t, "plugins: {permit: {enabled: [{name: A}]}}", []fwk.Plugin{a}, func(w *world) {
			w.addNode("n1", 1)
			w.api.Put(pod("p", "1"))
			time.Sleep(time.Second)
			synctest.Wait()
			if given == nil || given.Err() == nil {
				t.Errorf("%s: the context has not ended with the cycle", verdict)
			}
		})
	}
}

// toActivate mirrors upstream's PodsToActivate.
type toActivate struct {
	sync.Mutex
	Map map[string]*v1.Pod
}

func (a *toActivate) Clone() fwk.StateData { return a }

// TestPodsThatAPluginLeavesAreTried verifies that pods left for activation are tried if the cycle
// succeeds, and not if it fails.
func TestPodsThatAPluginLeavesAreTried(t *testing.T) {
	open := sets.New[string]()
	a := asks{fakePlugin: &fakePlugin{name: "A", quiet: true}}
	a.filter = func(_ fwk.CycleState, p *v1.Pod, _ fwk.NodeInfo) *fwk.Status {
		if p.Labels["sibling"] == "" || open.Has(p.Name) {
			return nil
		}
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "closed")
	}
	var siblings []*v1.Pod
	a.permit = func(_ context.Context, state fwk.CycleState, p *v1.Pod) (*fwk.Status, time.Duration) {
		if p.Labels["sibling"] != "" {
			return nil, 0
		}
		data, err := state.Read(podsToActivate)
		if err != nil {
			t.Fatal(err)
		}
		left := data.(*toActivate)
		left.Lock()
		defer left.Unlock()
		for _, sibling := range siblings {
			open.Insert(sibling.Name)
			left.Map["default/"+sibling.Name] = sibling
		}
		if p.Name == "fails" {
			return fwk.NewStatus(fwk.Unschedulable, "no"), 0
		}
		return nil, 0
	}
	activates := func(w *world) {
		w.set.options.PodsToActivate = func() fwk.StateData { return &toActivate{Map: map[string]*v1.Pod{}} }
	}
	inWorld(t, everywhere, []fwk.Plugin{a}, func(w *world) {
		activates(w)
		w.addNode("n1", 9)
		siblings = []*v1.Pod{pod("s1", "1", label("sibling", "yes")), pod("s2", "1", label("sibling", "yes"))}
		w.api.Put(siblings[0], siblings[1])
		time.Sleep(time.Minute)
		w.api.Put(pod("fails", "1"))
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, p := range w.api.Pods() {
			if p.Spec.NodeName != "" {
				t.Errorf("%s %s after a cycle that failed", p.Name, stateOf(p))
			}
		}
		w.api.Put(pod("p", "1"))
		time.Sleep(time.Second)
		synctest.Wait()
		for _, p := range w.api.Pods() {
			if p.Name != "fails" && p.Spec.NodeName == "" {
				t.Errorf("%s %s", p.Name, stateOf(p))
			}
		}
	})
	if ActivatesBy(nil) || !ActivatesBy(&toActivate{}) {
		t.Error("what is like PodsToActivate is not told from what is not")
	}
}

// TestANominatedNodeNeedNotBeNamedByPreFilter verifies that, like upstream, the nominated node is
// tried first, whatever nodes PreFilterResult names.
func TestANominatedNodeNeedNotBeNamedByPreFilter(t *testing.T) {
	for _, extra := range []string{"", ", disabled: [{name: PodTopologySpread}, {name: InterPodAffinity}]"} {
		a := &fakePlugin{name: "A", preFilter: func(fwk.CycleState, *v1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
			return &fwk.PreFilterResult{NodeNames: sets.New("n2")}, nil
		}}
		f := newConfigured(t, "plugins: {multiPoint: {enabled: [{name: A}]"+extra+"}}", a)
		f.node("n1", 4)
		f.node("n2", 4)
		_, got := f.decide(pod("plain", "1"))
		f.expect("without a nomination", got, "n2")
		p := pod("p", "1", nominated("n1"))
		f.has(p)
		_, got = f.decide(p)
		f.expect("nominated to another node", got, "n1")
		q := pod("q", "5", nominated("n1"))
		f.has(q)
		if _, got = f.decide(q); !strings.Contains(got, "1 node(s) didn't satisfy plugin(s) [A]") {
			t.Errorf("too large for its nominated node: %s", got)
		}
	}
}

// TestNobodyHelpsAPodThatIsRejectedInNoName verifies that RejectWaitingPod names no plugin, so no
// event wakes the pod.
func TestNobodyHelpsAPodThatIsRejectedInNoName(t *testing.T) {
	first := true
	a := &fakePlugin{name: "A", quiet: true, permit: func(*v1.Pod, string) (*fwk.Status, time.Duration) {
		defer func() { first = false }()
		if first {
			return fwk.NewStatus(fwk.Wait), time.Minute
		}
		return nil, 0
	}}
	inWorld(t, "plugins: {permit: {enabled: [{name: A}]}}", []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 1)
		w.api.Put(pod("p", "1"))
		w.expect(time.Second, "p waits (nominated to n1)")
		if !w.handle.RejectWaitingPod("p") {
			t.Error("it was not held")
		}
		const rejected = "p Unschedulable: 0/1 nodes are available: 1 removed."
		w.expect(time.Second, rejected)
		w.addNode("n2", 0)
		w.expect(time.Minute, rejected)
		w.expect(6*time.Minute, "p on n1")
	})
}
