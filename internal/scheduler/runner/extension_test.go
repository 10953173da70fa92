// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// outsider is a plugin at every extension point. It records its calls.
type outsider struct {
	name string

	mu      sync.Mutex
	said    []string
	wait    time.Duration // returned by Permit
	refuse  string        // the extension point at which it rejects pods
	closed  bool          // Admit rejects pods
	slow    time.Duration // duration of PreBind
	binds   bool
	bind    func(a *cycle.Attempt) error
	desired []queue.Interest

	parallel bool // PreBind may run in parallel
	// hangs maps "point pod" to a channel; the call at the point for the pod blocks until the
	// channel is closed.
	hangs map[string]chan struct{}
}

func (o *outsider) hang(point string, a *cycle.Attempt) {
	if until := o.hangs[point+" "+a.Pod.Name]; until != nil {
		<-until
	}
}

func (o *outsider) say(what string, a *cycle.Attempt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.said = append(o.said, o.name+" "+what+" "+a.Pod.Name)
	if a.State == nil {
		a.State = "begun"
	}
}

func (o *outsider) rejects(point string) *plugins.Rejection {
	if o.refuse == point {
		return &plugins.Rejection{Reasons: []string{"not now"}}
	}
	return nil
}

func (o *outsider) Name() string                 { return o.name }
func (o *outsider) Begin(a *cycle.Attempt)       { o.say("begin", a) }
func (o *outsider) End(a *cycle.Attempt, b bool) { o.say(fmt.Sprintf("end %t", b), a) }
func (o *outsider) Admit(*v1.Pod) *plugins.Rejection {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return &plugins.Rejection{Reasons: []string{"closed"}}
	}
	return nil
}
func (o *outsider) Reserve(a *cycle.Attempt) *plugins.Rejection {
	o.say("reserve", a)
	o.hang("reserve", a)
	return o.rejects("reserve")
}
func (o *outsider) Unreserve(a *cycle.Attempt) { o.say("unreserve", a) }
func (o *outsider) Permit(a *cycle.Attempt) (*plugins.Rejection, time.Duration) {
	o.say("permit", a)
	o.hang("permit", a)
	return o.rejects("permit"), o.wait
}
func (o *outsider) Needed(context.Context, *cycle.Attempt) (cycle.PreBindWork, error) {
	return cycle.PreBindWork{Needed: o.slow > 0, Parallel: o.parallel}, nil
}
func (o *outsider) PreBind(ctx context.Context, a *cycle.Attempt) error {
	o.say("prebind", a)
	o.hang("prebind", a)
	if o.refuse == "prebind" {
		return fmt.Errorf("not now")
	}
	select {
	case <-time.After(o.slow):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
func (o *outsider) Bind(_ context.Context, a *cycle.Attempt) (bool, error) {
	o.say("bind", a)
	o.hang("bind", a)
	if !o.binds {
		return true, nil
	}
	return false, o.bind(a)
}
func (o *outsider) PostBind(_ context.Context, a *cycle.Attempt) {
	o.say("postbind", a)
	o.hang("postbind", a)
}
func (o *outsider) RunPostFilter(a *cycle.Attempt, evaluate func() *decide.Evaluation) cycle.PostFilterResult {
	o.say(fmt.Sprintf("rescue with %d verdicts", len(evaluate().Nodes)), a)
	return cycle.PostFilterResult{Message: "nothing to be done"}
}
func (o *outsider) Interests() ([]queue.Interest, error) { return o.desired, nil }

func (o *outsider) words() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.said, "\n")
}

func (o *outsider) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

// with returns the default profile with out-of-tree plugins at every point.
func with(t *testing.T, outside ...*outsider) cycle.Profile {
	t.Helper()
	d := plugins.Default()
	at := map[plugins.Point][]string{}
	for _, point := range plugins.AllPoints {
		at[point] = slices.Clone(d.At[point])
	}
	p := cycle.Profile{}
	for _, o := range outside {
		p.Extensions = append(p.Extensions, o)
		for _, point := range []plugins.Point{plugins.PreEnqueue, plugins.PostFilter, plugins.Reserve, plugins.Permit, plugins.PreBind, plugins.PostBind} {
			at[point] = append(at[point], o.name)
		}
		at[plugins.Bind] = append([]string{o.name}, at[plugins.Bind]...)
	}
	made, err := plugins.NewProfile(v1.DefaultSchedulerName, at, d.Weights, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Profile = made
	return p
}

func (w *world) saidInOrder(text string, want ...string) {
	w.Helper()
	rest := text
	for _, s := range want {
		at := strings.Index(rest, s)
		if at < 0 {
			w.Fatalf("no %q in its place in\n%s", s, text)
		}
		rest = rest[at+len(s):]
	}
}

func TestPluginIsAskedAtEveryPoint(t *testing.T) {
	inWorld(t, func(w *world) {
		o := &outsider{name: "O", slow: time.Second}
		w.api.Put(aNode("n", "1"), aPod("a", "1"))
		w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
		w.untilBound("a")
		w.pass(time.Second)
		w.saidInOrder(o.words(), "begin a", "reserve a", "permit a", "prebind a", "bind a", "postbind a", "end true a")
		if strings.Contains(o.words(), "unreserve") {
			t.Errorf("took back what was bound:\n%s", o.words())
		}
		w.api.Put(aPod("b", "1"))
		w.until("b is turned down", func() bool { return w.condition("b") != "" })
		w.saidInOrder(o.words(), "begin b", "rescue with 1 verdicts b", "end false b")
		want := "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod., nothing to be done"
		if got := w.condition("b"); got != "Unschedulable: "+want {
			t.Errorf("told %q", got)
		}
	})
}

// TestFailureIsTakenBackInReverse verifies that wherever an attempt fails, Unreserve is called for
// all plugins in reverse order, and the resources on the node are released.
func TestFailureIsTakenBackInReverse(t *testing.T) {
	for point, text := range map[string]string{
		"reserve": "Unschedulable: 0/1 nodes are available: 1 not now.",
		"permit":  "Unschedulable: 0/1 nodes are available: 1 not now.",
		"prebind": `SchedulerError: running PreBind plugin "B": not now`,
	} {
		t.Run(point, func(t *testing.T) {
			inWorld(t, func(w *world) {
				a, b := &outsider{name: "A", slow: time.Second}, &outsider{name: "B", slow: time.Second, refuse: point}
				w.api.Put(aNode("n", "1"), aPod("p", "1"))
				w.start(Options{Profiles: []cycle.Profile{with(t, a, b)}})
				w.until("p is turned down", func() bool { return w.condition("p") != "" })
				if got := w.condition("p"); got != text {
					t.Errorf("told %q, want %q", got, text)
				}
				w.saidInOrder(b.words(), "unreserve p", "end false p")
				w.saidInOrder(a.words(), "reserve p", "unreserve p")
				w.do(func() {
					if w.s.core.View().Cluster.Pods() != 0 || len(w.s.core.Books().Assumed) != 0 {
						t.Errorf("%d still counted", w.s.core.View().Cluster.Pods())
					}
				})
				b.set(func() { b.refuse = "" })
				w.s.Activate("uid-p")
				w.untilBound("p")
			})
		})
	}
}

func TestPermitHoldsAPod(t *testing.T) {
	ends := map[string]func(w *world, p *WaitingPod){
		"allowed":   func(_ *world, p *WaitingPod) { p.Allow("O"); p.Allow("O") },
		"rejected":  func(_ *world, p *WaitingPod) { p.Reject("O", "no"); p.Allow("O") },
		"preempted": func(_ *world, p *WaitingPod) { p.Preempt("O", "another one") },
		"timed out": func(w *world, _ *WaitingPod) { w.pass(31 * time.Second) },
		"deleted":   func(w *world, _ *WaitingPod) { w.api.Delete(aPod("p", "1")) },
		"node gone": func(w *world, _ *WaitingPod) { w.api.Delete(aNode("n", "1")) },
	}
	told := map[string]string{
		"rejected": "Unschedulable: 0/1 nodes are available: 1 no.", "preempted": "SchedulerError: waiting on permit for pod: another one",
		"timed out": "Unschedulable: 0/1 nodes are available: 1 rejected due to timeout after waiting 30s at plugin O.",
		"node gone": "SchedulerError: the node was removed before the pod was bound to it",
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				o := &outsider{name: "O", wait: 30 * time.Second, desired: []queue.Interest{}}
				w.api.Put(aNode("n", "1"), aPod("p", "1"))
				w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
				w.until("it waits", func() bool { return w.s.WaitingPod("uid-p") != nil })
				w.pass(time.Second)
				if got := w.api.Pods()[0].Status.NominatedNodeName; got != "n" {
					t.Errorf("nominated to %q while it waits", got)
				}
				count := 0
				w.s.EachWaitingPod(func(p *WaitingPod) { count += len(p.Pending()) })
				if count != 1 || w.nodeOf("p") != "" {
					t.Errorf("%d plugins have it wait, and it is on %q", count, w.nodeOf("p"))
				}
				end(w, w.s.WaitingPod("uid-p"))
				w.pass(500 * time.Millisecond)
				switch got := w.condition("p"); {
				case name == "allowed":
					w.untilBound("p")
				case got != told[name]:
					t.Errorf("told %q, want %q", got, told[name])
				case name != "preempted" && w.s.WaitingPod("uid-p") != nil:
					t.Error("it waits still")
				}
				w.do(func() {
					if len(w.s.core.Books().Held) != 0 && name != "preempted" {
						t.Errorf("%d held", len(w.s.core.Books().Held))
					}
				})
			})
		})
	}
}

func TestPluginThatBinds(t *testing.T) {
	inWorld(t, func(w *world) {
		o := &outsider{name: "O", binds: true}
		o.bind = func(a *cycle.Attempt) error {
			fakeapi.Change(w.api, a.Pod, func(p *v1.Pod) { p.Spec.NodeName = a.Node })
			return nil
		}
		w.api.Put(aNode("n", "1"), aPod("a", "1"))
		w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
		w.untilBound("a")
		if n := len(w.api.Bindings()); n != 0 {
			t.Errorf("%d bindings beside the plugin's own", n)
		}
	})
}

func TestGateFromOutside(t *testing.T) {
	inWorld(t, func(w *world) {
		o := &outsider{name: "O", closed: true, desired: []queue.Interest{{Resource: queue.Node, Action: queue.UpdateNodeAnnotation}}}
		n := aNode("n", "1")
		w.api.Put(n, aPod("a", "1"))
		w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
		w.pass(time.Hour)
		if s := w.s.Sizes(); s.Gated != 1 || w.condition("a") != "" {
			t.Errorf("%+v, told %q", s, w.condition("a"))
		}
		o.set(func() { o.closed = false })
		fakeapi.Change(w.api, n, func(n *v1.Node) { n.Labels["x"] = "y" })
		w.pass(time.Minute)
		if w.nodeOf("a") != "" {
			t.Error("let in by something that the gate does not ask about")
		}
		fakeapi.Change(w.api, n, func(n *v1.Node) { n.Annotations = map[string]string{"x": "y"} })
		w.untilBound("a")
	})
}

// TestProfilesChangeUnderLoad verifies that when profiles are replaced, bindings in progress are
// finished, pending pods are retried with the new profiles, pods of removed profiles are ignored,
// and pods of added profiles are scheduled.
func TestProfilesChangeUnderLoad(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(1, func(r *http.Request) bool { return isBinding(r, "a") }, fakeapi.Fault{Late: 5 * time.Second}))
		tainted := aNode("n", "3")
		tainted.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}
		other := aPod("other", "1")
		other.Spec.SchedulerName = "other"
		w.api.Put(aNode("m", "1"), tainted, aPod("a", "1"), aPod("b", "1"), other)
		w.start(Options{})
		w.until("b or a is turned down", func() bool { return w.condition("a")+w.condition("b") != "" })
		w.pass(time.Minute)
		if n := w.nodeOf("other"); n != "" {
			t.Fatalf("a pod of another scheduler is on %s", n)
		}
		w.do(func() {
			if w.s.core.View().Queue.Len(queue.Waiting) != 1 {
				t.Errorf("%d wait", w.s.core.View().Queue.Len(queue.Waiting))
			}
		})
		blind := plugins.Default()
		blind.Filters = slices.DeleteFunc(blind.Filters, func(f plugins.Filter) bool { return f.Name() == "TaintToleration" })
		second := *blind
		second.SchedulerName = "other"
		if err := w.s.SetProfiles(context.Background(), []cycle.Profile{{Profile: blind}, {Profile: &second}}, nil); err != nil {
			t.Fatal(err)
		}
		w.untilBound("a", "b", "other")
		if err := w.s.SetProfiles(context.Background(), []cycle.Profile{{Profile: &second}}, nil); err != nil {
			t.Fatal(err)
		}
		w.api.Put(aPod("late", "100m"))
		w.pass(time.Minute)
		if n := w.nodeOf("late"); n != "" {
			t.Errorf("nobody serves its name, and it is on %s", n)
		}
		if err := w.s.SetProfiles(context.Background(), []cycle.Profile{{Profile: blind}}, nil); err != nil {
			t.Fatal(err)
		}
		w.untilBound("late")
		if err := w.s.SetProfiles(context.Background(), nil, nil); err == nil {
			t.Error("no profile at all was taken")
		}
	})
}

// bursts is an outsider that panics in the first call at one extension point for the pod "bad".
type bursts struct {
	*outsider
	point string
	once  sync.Once
}

func (x *bursts) at(point string, a *cycle.Attempt) {
	if x.point == point && a.Pod.Name == "bad" {
		x.once.Do(func() { panic("at " + point) })
	}
}

func (x *bursts) Reserve(a *cycle.Attempt) *plugins.Rejection {
	x.at("Reserve", a)
	return nil
}

func (x *bursts) Needed(_ context.Context, a *cycle.Attempt) (cycle.PreBindWork, error) {
	x.at("PreBindPreFlight", a)
	return cycle.PreBindWork{Needed: true}, nil
}

func (x *bursts) PreBind(_ context.Context, a *cycle.Attempt) error {
	x.at("PreBind", a)
	return nil
}

func (x *bursts) Bind(_ context.Context, a *cycle.Attempt) (bool, error) {
	x.at("Bind", a)
	return true, nil
}

func (x *bursts) PostBind(_ context.Context, a *cycle.Attempt) { x.at("PostBind", a) }

// panics is an observer that counts panics.
type panics struct {
	cycle.NoObserver
	n atomic.Int32
}

func (p *panics) Panics() { p.n.Add(1) }

// TestAPanicCostsItsPodTheAttempt verifies that a panic of a plugin, on the owner's goroutine or on
// a goroutine of the pod, only fails the attempt of the pod. The panic is reported in the pod's
// condition and in an event, and is counted. The pod is placed after its back-off; another pod can
// be placed in the meantime.
func TestAPanicCostsItsPodTheAttempt(t *testing.T) {
	for point, text := range map[string]string{
		"Reserve":          "internal error while the pod was decided: at Reserve",
		"PreBindPreFlight": `plugin "X" panicked: at PreBindPreFlight`,
		"PreBind":          `plugin "X" panicked: at PreBind`,
		"Bind":             `plugin "X" panicked: at Bind`,
		"PostBind":         "",
	} {
		t.Run(point, func(t *testing.T) {
			inWorld(t, func(w *world) {
				x := &bursts{outsider: &outsider{name: "X"}, point: point}
				profile := with(t, x.outsider)
				profile.Extensions = []cycle.Extension{x}
				w.api.Put(aNode("n", "4"), aPod("bad", "3"))
				var seen panics
				w.start(Options{Profiles: []cycle.Profile{profile}, Observer: &seen})
				w.pass(500 * time.Millisecond)
				if is := w.condition("bad"); !strings.Contains(is, text) {
					t.Errorf("the pod's condition: %s", is)
				}
				if seen.n.Load() != 1 {
					t.Errorf("%d panics are counted", seen.n.Load())
				}
				if node := w.nodeOf("bad"); (node == "n") != (text == "") {
					t.Errorf("in its back-off the pod is on %q", node)
				}
				told := slices.ContainsFunc(w.api.Events(), func(e *v1.Event) bool {
					return e.InvolvedObject.Name == "bad" && e.Type == v1.EventTypeWarning && strings.Contains(e.Message, text)
				})
				if told != (text != "") {
					t.Errorf("an event tells: %t", told)
				}
				w.api.Put(aPod("good", "1"))
				w.untilBound("bad", "good")
				w.checkRoom()
			})
		})
	}
}

// dawdles is an outsider whose Reserve, which runs on the owner's goroutine, is slow.
type dawdles struct{ *outsider }

func (x *dawdles) Reserve(a *cycle.Attempt) *plugins.Rejection {
	if a.Pod.Name == "slow" {
		time.Sleep(10 * time.Second)
	}
	return nil
}

// TestASlowPluginHoldsUpDecisionsAndNotBindings verifies that bindings already decided are still
// sent while a plugin blocks the owner, and that pods observed in the meantime are decided
// afterwards.
func TestASlowPluginHoldsUpDecisionsAndNotBindings(t *testing.T) {
	inWorld(t, func(w *world) {
		x := &dawdles{&outsider{name: "X"}}
		profile := with(t, x.outsider)
		profile.Extensions, profile.At[plugins.PreBind] = []cycle.Extension{x}, plugins.Default().At[plugins.PreBind]
		w.api.Put(aNode("n", "4"), withPriority(aPod("before", "1"), 10), withPriority(aPod("slow", "1"), 5))
		w.start(Options{Profiles: []cycle.Profile{profile}})
		w.pass(time.Second)
		w.api.Put(aPod("after", "1"))
		w.pass(8 * time.Second)
		if before, after := w.nodeOf("before"), w.nodeOf("after"); before != "n" || after != "" {
			t.Errorf("after nine of ten seconds one pod is on %q and the other on %q", before, after)
		}
		w.untilBound("slow", "after")
	})
}
