// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/scheduler/runner"
)

// world is a live scheduler with out-of-tree plugins and its API server, in virtual time.
type world struct {
	*testing.T
	*record
	api    *fakeapi.Server
	set    *Set
	handle fwk.Handle
	panics atomic.Int32 // outside of attempts
}

// inWorld runs a scheduler with one profile and the plugins for the duration of the test.
func inWorld(t *testing.T, profile string, made []fwk.Plugin, test func(w *world)) {
	t.Helper()
	inWorldWith(t, profile, made, nil, test)
}

func inWorldWith(t *testing.T, profile string, made []fwk.Plugin, extenders []fwk.Extender, test func(w *world)) {
	t.Helper()
	inAnyWorld(t, profile, made, extenders, groups.Gates{}, test)
}

// inGroupWorld is inWorld with pod groups.
func inGroupWorld(t *testing.T, profile string, made []fwk.Plugin, test func(w *world)) {
	t.Helper()
	inAnyWorld(t, profile, made, nil, groups.Gates{Generic: true, Topology: true}, test)
}

func inAnyWorld(t *testing.T, profile string, made []fwk.Plugin, extenders []fwk.Extender, gates groups.Gates, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, record: &record{}, api: fakeapi.New()}
		ctx, stop := context.WithCancel(context.Background())
		store := NewStore()
		w.set = New(ctx, Options{Factories: w.factories(made), Store: store, Client: w.api.Client(), Panicked: func() { w.panics.Add(1) }})
		c, err := parse(w.set, "profiles: [{schedulerName: default-scheduler, "+profile+"}]")
		if err != nil {
			t.Fatal(err)
		}
		w.set.extenders = extenders
		profiles, err := w.set.Profiles(c)
		if err != nil {
			t.Fatal(err)
		}
		s, err := runner.New(w.api.Client(), w.api.Client(), runner.Options{Profiles: profiles, Objects: store, Groups: gates})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.set.Start(ctx); err != nil {
			t.Fatal(err)
		}
		w.set.Attach(s)
		ended := make(chan error)
		go func() { ended <- s.Run(ctx, 4) }()
		synctest.Wait()
		test(w)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		w.set.Close()
		w.api.Cut("pods", false)
	})
}

func (w *world) factories(made []fwk.Plugin) map[string]Factory {
	factories := map[string]Factory{}
	for _, plugin := range made {
		if p, ok := plugin.(interface{ recordIn(*record) }); ok {
			p.recordIn(w.record)
		}
		factories[plugin.Name()] = func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			w.handle = h
			return plugin, nil
		}
	}
	return factories
}

func (w *world) addNode(name string, cpus int) {
	w.api.Put(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(fmt.Sprint(cpus)), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	})
	synctest.Wait()
}

// expect waits for this duration and for all consequences of the previous steps, and compares the
// states of the pods.
func (w *world) expect(after time.Duration, want string) {
	w.Helper()
	time.Sleep(after)
	synctest.Wait()
	var all []string
	for _, p := range w.api.Pods() {
		all = append(all, p.Name+" "+stateOf(p))
	}
	if got := strings.Join(all, "; "); got != want {
		w.Errorf("%s later:\n got %s\nwant %s", after, got, want)
	}
}

// stateOf returns the pod's node, or the reason why it is pending.
func stateOf(p *v1.Pod) string {
	if p.Spec.NodeName != "" {
		return "on " + p.Spec.NodeName
	}
	state := "waits"
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled {
			state = c.Reason + ": " + c.Message
		}
	}
	if p.Status.NominatedNodeName != "" {
		state += " (nominated to " + p.Status.NominatedNodeName + ")"
	}
	return state
}

const everywhere = "plugins: {multiPoint: {enabled: [{name: A}]}}"

// TestAPodGoesThroughAllExtensionPoints verifies that extension points are called in upstream's
// order.
func TestAPodGoesThroughAllExtensionPoints(t *testing.T) {
	a := &fakePlugin{name: "A", score: preferring("n2")}
	inWorld(t, "plugins: {multiPoint: {enabled: [{name: A}], disabled: [{name: DefaultBinder}]}}", []fwk.Plugin{binding{a}}, func(w *world) {
		a.bind = func(p *v1.Pod, node string) *fwk.Status {
			b := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, Target: v1.ObjectReference{Kind: "Node", Name: node}}
			return fwk.AsStatus(w.handle.ClientSet().CoreV1().Pods(p.Namespace).Bind(context.Background(), b, metav1.CreateOptions{}))
		}
		w.addNode("n1", 4)
		w.addNode("n2", 4)
		w.api.Put(pod("p", "1"))
		w.expect(time.Second, "p on n2")
		calls := w.taken()
		ordered := []string{"PreEnqueue p", "PreFilter p", "Filter n2", "PreScore 2", "Score n2", "Reserve p on n2", "Permit p on n2",
			"PreBindPreFlight p on n2", "PreBind p on n2", "Bind p on n2", "PostBind p on n2"}
		at := -1
		for _, call := range ordered {
			next := strings.Index(calls, "A "+call)
			if next <= at {
				t.Errorf("%q comes too early or not at all: %s", call, calls)
			}
			at = next
		}
	})
}

// TestWhatGoesWrongBehindTheDecisionIsTakenBack verifies the effects of a failure after the
// decision: the pod's condition has upstream's reason, the resources are free again, and the pod is
// retried. After an error, it is retried when its back-off ends; otherwise on an event that can
// help.
func TestWhatGoesWrongBehindTheDecisionIsTakenBack(t *testing.T) {
	no, broken := fwk.NewStatus(fwk.Unschedulable, "no"), fwk.AsStatus(errors.New("broken"))
	for _, c := range []struct {
		name, want string
		plugin     fakePlugin
	}{
		{"Reserve error", `p SchedulerError: running Reserve plugin "A": broken`, fakePlugin{reserve: func(*v1.Pod, string) *fwk.Status { return broken }}},
		{"Reserve rejection", "p Unschedulable: 0/1 nodes are available: 1 no.", fakePlugin{reserve: func(*v1.Pod, string) *fwk.Status { return no }}},
		{"Permit error", `p SchedulerError: running Permit plugin "A": broken`, fakePlugin{permit: func(*v1.Pod, string) (*fwk.Status, time.Duration) { return broken, 0 }}},
		{"Permit rejection", "p Unschedulable: 0/1 nodes are available: 1 no.", fakePlugin{permit: func(*v1.Pod, string) (*fwk.Status, time.Duration) { return no, 0 }}},
		{"PreBindPreFlight error", `p SchedulerError: running PreBindPreFlight "A": broken`,
			fakePlugin{preFlight: func(*v1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) { return nil, broken }}},
		{"PreBind error", `p SchedulerError: running PreBind plugin "A": broken`, fakePlugin{preBind: func(context.Context, *v1.Pod, string) *fwk.Status { return broken }}},
		{"PreBind rejection", "p Unschedulable: no", fakePlugin{preBind: func(context.Context, *v1.Pod, string) *fwk.Status { return no }}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &c.plugin
			a.name, a.quiet = "A", true
			a.events = func() ([]fwk.ClusterEventWithHint, error) {
				return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}}}, nil
			}
			inWorld(t, everywhere, []fwk.Plugin{a}, func(w *world) {
				w.addNode("n1", 1)
				w.api.Put(pod("p", "1"))
				w.expect(500*time.Millisecond, c.want)
				if calls := w.taken(); !strings.Contains(calls, "A Unreserve p on n1") || strings.Contains(calls, "PostBind") {
					t.Errorf("nothing was given back: %s", calls)
				}
				a.reserve, a.permit, a.preFlight, a.preBind = nil, nil, nil, nil
				w.addNode("n2", 1) // an event that may help pods rejected by the plugin
				time.Sleep(15 * time.Second)
				synctest.Wait()
				if p := w.api.Pods()[0]; p.Spec.NodeName == "" {
					t.Errorf("the pod is not tried again: %s", stateOf(p))
				}
			})
		})
	}
}

// TestPodsThatWaitAtPermit verifies the state of pods that wait at Permit and are allowed, rejected
// or preempted by the plugin, or reach the timeout.
func TestPodsThatWaitAtPermit(t *testing.T) {
	for _, c := range []struct {
		name string
		act  func(w fwk.WaitingPod)
		want string
	}{
		{"allowed", func(w fwk.WaitingPod) { w.Allow("A") }, "p on n1"},
		{"allowed by somebody else", func(w fwk.WaitingPod) { w.Allow("B") }, "p waits (nominated to n1)"},
		{"rejected", func(w fwk.WaitingPod) { w.Reject("A", "no more") }, "p Unschedulable: 0/1 nodes are available: 1 no more."},
		{"preempted", func(w fwk.WaitingPod) { w.Preempt("A", "for another") }, "p SchedulerError: waiting on permit for pod: for another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tries := 0
			a := &fakePlugin{name: "A", quiet: true, permit: func(*v1.Pod, string) (*fwk.Status, time.Duration) {
				tries++
				return fwk.NewStatus(fwk.Wait), time.Minute
			}}
			inWorld(t, "plugins: {permit: {enabled: [{name: A}]}}", []fwk.Plugin{a}, func(w *world) {
				w.addNode("n1", 1)
				w.api.Put(pod("p", "1"))
				w.expect(time.Second, "p waits (nominated to n1)")
				waiting := w.handle.GetWaitingPod("p")
				if waiting == nil || waiting.GetPod().Name != "p" || strings.Join(waiting.GetPendingPlugins(), "") != "A" {
					t.Fatalf("got %v", waiting)
				}
				seen := 0
				w.handle.IterateOverWaitingPods(func(fwk.WaitingPod) { seen++ })
				if seen != 1 {
					t.Errorf("%d pods wait", seen)
				}
				c.act(waiting)
				w.expect(500*time.Millisecond, c.want)
			})
		})
	}
	forgetful := &fakePlugin{name: "A", quiet: true, permit: func(*v1.Pod, string) (*fwk.Status, time.Duration) {
		return fwk.NewStatus(fwk.Wait), 5 * time.Second
	}}
	inWorld(t, "plugins: {permit: {enabled: [{name: A}]}}", []fwk.Plugin{forgetful}, func(w *world) {
		w.addNode("n1", 1)
		w.api.Put(pod("p", "1"))
		w.expect(6*time.Second, "p Unschedulable: 0/1 nodes are available: 1 rejected due to timeout after waiting 5s at plugin A.")
	})
}

// TestAGroupIsBoundAsAWhole verifies that a plugin such as coscheduling makes pods wait at Permit
// until their whole group has nodes.
func TestAGroupIsBoundAsAWhole(t *testing.T) {
	var w *world
	a := &fakePlugin{name: "A", quiet: true}
	a.permit = func(p *v1.Pod, _ string) (*fwk.Status, time.Duration) {
		mates := 1
		w.handle.IterateOverWaitingPods(func(waiting fwk.WaitingPod) {
			if waiting.GetPod().Labels["group"] == p.Labels["group"] {
				mates++
			}
		})
		if mates < 3 {
			return fwk.NewStatus(fwk.Wait), time.Minute
		}
		w.handle.IterateOverWaitingPods(func(waiting fwk.WaitingPod) { waiting.Allow("A") })
		return nil, 0
	}
	a.reserve = nil
	inWorld(t, everywhere, []fwk.Plugin{a}, func(running *world) {
		w = running
		w.addNode("n1", 2)
		w.api.Put(pod("g1", "1", label("group", "g")), pod("g2", "1", label("group", "g")), pod("g3", "1", label("group", "g")))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for _, p := range w.api.Pods() {
			if p.Spec.NodeName != "" {
				t.Errorf("%s is on %s before its group is complete", p.Name, p.Spec.NodeName)
			}
		}
		w.addNode("n2", 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, p := range w.api.Pods() {
			if p.Spec.NodeName == "" {
				t.Errorf("%s: %s", p.Name, stateOf(p))
			}
		}
	})
}

// TestAPluginPicksTheNodeForAPodThatFitsNowhere verifies that the plugin's nomination is written to
// the pod, and that its message is appended to the reasons.
func TestAPluginPicksTheNodeForAPodThatFitsNowhere(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true}
	inWorld(t, "plugins: {postFilter: {enabled: [{name: A}], disabled: [{name: DefaultPreemption}]}}", []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 1)
		a.post = func(*v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
			return nil, fwk.NewStatus(fwk.Unschedulable, "nothing to be done")
		}
		w.api.Put(pod("p", "2"))
		w.expect(time.Second, "p Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. nothing to be done")
		a.post = func(*v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
			return &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n1"}}, nil
		}
		w.api.Put(pod("q", "2"))
		time.Sleep(time.Second)
		synctest.Wait()
		if q := w.api.Pods()[1]; q.Status.NominatedNodeName != "n1" {
			t.Errorf("got %s", stateOf(q))
		}
	})
}

// bursting is a plugin that panics for the pod "bad" at one of the points called outside of
// attempts, where no attempt can fail.
type bursting struct {
	*fakePlugin
	point string
}

func (b bursting) at(point, pod string) {
	if point == b.point && pod == "bad" {
		panic("at " + point)
	}
}

func (b bursting) Less(x, y fwk.QueuedEntityInfo) bool {
	one, other := nameOf(x), nameOf(y)
	b.at("QueueSort", one)
	b.at("QueueSort", other)
	return one < other
}

func (b bursting) PreEnqueue(_ context.Context, p *v1.Pod) *fwk.Status {
	b.at("PreEnqueue", p.Name)
	return nil
}

func (b bursting) Unreserve(_ context.Context, _ fwk.CycleState, p *v1.Pod, _ string) {
	b.at("Unreserve", p.Name)
}

func (b bursting) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{
		Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add},
		QueueingHintFn: func(_ klog.Logger, p *v1.Pod, _, _ any) (fwk.QueueingHint, error) {
			b.at("QueueingHintFn", p.Name)
			return fwk.QueueSkip, nil
		},
	}}, nil
}

// TestAPanicOutsideOfAttemptsEndsNothing verifies that only the call fails, and that the panic is
// counted. A pod stays gated if its gate panicked, and is tried if its hint panicked; reservations
// are given back, and other pods are placed.
func TestAPanicOutsideOfAttemptsEndsNothing(t *testing.T) {
	const refused = "bad SchedulerError: running Permit plugin \"A\": not this one"
	for point, want := range map[string]string{
		"QueueSort":      refused + "; good on n1",
		"PreEnqueue":     "bad waits; good on n1",
		"Unreserve":      refused + "; good on n1",
		"QueueingHintFn": refused + "; good on n1",
	} {
		t.Run(point, func(t *testing.T) {
			a := &fakePlugin{name: "A", quiet: true, filter: func(_ fwk.CycleState, p *v1.Pod, n fwk.NodeInfo) *fwk.Status {
				if point == "QueueingHintFn" && p.Name == "bad" && n.Node().Name == "n1" {
					return fwk.NewStatus(fwk.Unschedulable, "not here")
				}
				return nil
			}}
			a.permit = func(p *v1.Pod, _ string) (*fwk.Status, time.Duration) {
				if p.Name == "bad" {
					return fwk.AsStatus(errors.New("not this one")), 0
				}
				return nil, 0
			}
			inWorld(t, "plugins: {multiPoint: {enabled: [{name: A}], disabled: [{name: PrioritySort}]}}", []fwk.Plugin{bursting{a, point}}, func(w *world) {
				if point == "QueueSort" { // both are due together
					w.api.Put(pod("bad", "1"), pod("good", "1"))
					time.Sleep(time.Second)
					w.addNode("n1", 1)
				} else {
					w.addNode("n1", 1)
					w.api.Put(pod("bad", "1"), pod("good", "1"))
				}
				time.Sleep(time.Second)
				w.addNode("n2", 1)
				w.expect(5*time.Second, want)
				if w.panics.Load() == 0 {
					w.Error("no panic was counted")
				}
			})
		})
	}
}

// TestAPanicOfAPluginCostsItsPodTheAttempt verifies that only the pod's attempt fails, even while
// the plugin may call back: the open session is closed, and the next pod is decided.
func TestAPanicOfAPluginCostsItsPodTheAttempt(t *testing.T) {
	for _, point := range []string{"filter", "permit", "bind"} {
		t.Run(point, func(t *testing.T) {
			burst := func(at string, p *v1.Pod) {
				if at == point && p.Name == "bad" {
					panic("at " + at)
				}
			}
			a := &fakePlugin{name: "A", quiet: true}
			a.filter = func(_ fwk.CycleState, p *v1.Pod, _ fwk.NodeInfo) *fwk.Status { burst("filter", p); return nil }
			a.permit = func(p *v1.Pod, _ string) (*fwk.Status, time.Duration) { burst("permit", p); return nil, 0 }
			a.bind = func(p *v1.Pod, _ string) *fwk.Status {
				burst("bind", p)
				return fwk.NewStatus(fwk.Skip)
			}
			inWorld(t, "plugins: {multiPoint: {enabled: [{name: A}], disabled: [{name: DefaultBinder}]}, bind: {enabled: [{name: A}, {name: DefaultBinder}]}}",
				[]fwk.Plugin{binding{a}}, func(w *world) {
					w.addNode("n", 1)
					w.api.Put(pod("bad", "1"))
					time.Sleep(500 * time.Millisecond)
					w.api.Put(pod("good", "1"))
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
					for _, p := range w.api.Pods() {
						if state := stateOf(p); p.Name == "good" && state != "on n" || p.Name == "bad" && !strings.Contains(state, "at "+point) {
							t.Errorf("%s: %s", p.Name, state)
						}
					}
				})
		})
	}
}
