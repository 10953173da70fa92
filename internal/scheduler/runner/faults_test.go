// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestBindingThatFails verifies that whatever happens to the first two requests of a binding, the
// pod is bound once, and the scheduler's state is correct afterwards.
func TestBindingThatFails(t *testing.T) {
	for name, f := range map[string]fakeapi.Fault{
		"conflict":           {Status: http.StatusConflict},
		"too many requests":  {Status: http.StatusTooManyRequests},
		"internal error":     {Status: http.StatusInternalServerError},
		"forbidden":          {Status: http.StatusForbidden},
		"timeout":            {Status: http.StatusGatewayTimeout},
		"lost":               {Lost: true},
		"unanswered":         {Unanswered: true},
		"answered too late":  {Slow: time.Minute},
		"arrives too late":   {Late: time.Minute},
		"late and no answer": {Late: 20 * time.Second, Unanswered: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.SetFault(times(2, func(r *http.Request) bool { return isBinding(r, "a") }, f))
				w.api.Put(aNode("n", "1"), aPod("a", "1"))
				w.start(Options{})
				w.untilBound("a")
				w.pass(time.Minute)
				if n := len(w.api.Bindings()); n != 1 {
					t.Errorf("%d bindings, want 1", n)
				}
				w.do(func() {
					if len(w.s.core.Books().Assumed) != 0 || w.s.core.View().Cluster.Pods() != 1 || w.s.core.View().Queue.Get("uid-a") != nil {
						t.Errorf("%d on their way, %d on nodes, in the queue: %v", len(w.s.core.Books().Assumed), w.s.core.View().Cluster.Pods(), w.s.core.View().Queue.Get("uid-a"))
					}
				})
			})
		})
	}
}

// refusals records the reasons of refused bindings.
type refusals struct {
	cycle.NoObserver
	mutex   sync.Mutex
	reasons []string
}

func (r *refusals) BindRefused(reason string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.reasons = append(r.reasons, reason)
}

// TestBindingThatWasTakenAfterAll verifies the behavior if the first request of a binding times out
// but is carried out, so that the second request is refused. The pod is on its node, so no
// condition or event may report a failure, and only the first request may be counted as refused.
func TestBindingThatWasTakenAfterAll(t *testing.T) {
	inWorld(t, func(w *world) {
		a := aPod("a", "1")
		tries := 0
		w.api.SetFault(func(r *http.Request) (f fakeapi.Fault) {
			if !isBinding(r, "a") {
				return f
			}
			switch tries++; tries {
			case 1:
				f.Late = time.Minute
			case 2:
				fakeapi.Change(w.api, a, func(p *v1.Pod) { p.Spec.NodeName = "n" })
			}
			return f
		})
		w.api.Put(aNode("n", "1"), a)
		var seen refusals
		w.start(Options{Observer: &seen})
		w.pass(2 * time.Minute)
		if node, text := w.nodeOf("a"), w.condition("a"); node != "n" || text != "" {
			t.Errorf("a on %q, told %q", node, text)
		}
		for _, e := range w.api.Events() {
			if e.Type != v1.EventTypeNormal {
				t.Errorf("event %s: %s", e.Reason, e.Message)
			}
		}
		if want := []string{""}; tries != 2 || !slices.Equal(seen.reasons, want) {
			t.Errorf("%d tries, refused for %q, want %q", tries, seen.reasons, want)
		}
		w.do(func() {
			if len(w.s.core.Books().Assumed) != 0 || w.s.core.View().Cluster.Pods() != 1 {
				t.Errorf("%d on their way, %d on nodes", len(w.s.core.Books().Assumed), w.s.core.View().Cluster.Pods())
			}
		})
	})
}

// TestRoomIsKeptWhileABindingIsInDoubt verifies that if the response to a binding is lost, and the
// pod cannot be read, the resources on the node stay reserved until the pod can be read.
func TestRoomIsKeptWhileABindingIsInDoubt(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			switch {
			case isBinding(r, "a"):
				return fakeapi.Fault{Late: 3 * time.Second, Unanswered: true} // longer than b's back-off
			case isPodGet(r, "a"):
				return fakeapi.Fault{Lost: true}
			}
			return fakeapi.Fault{}
		})
		w.api.Put(aNode("n", "1"), withPriority(aPod("a", "1"), 1), aPod("b", "1"))
		w.api.Hold("pods")
		w.start(Options{})
		w.until("b is turned down", func() bool { return w.condition("b") != "" })
		w.pass(5 * time.Minute)
		w.api.SetFault(nil)
		w.api.Release("pods")
		w.pass(time.Minute)
		w.checkRoom()
		if w.nodeOf("a") != "n" || w.nodeOf("b") != "" {
			t.Errorf("a on %q, b on %q", w.nodeOf("a"), w.nodeOf("b"))
		}
		w.do(func() {
			if len(w.s.core.Books().Assumed) != 0 {
				t.Error("a is still on its way")
			}
		})
	})
}

// TestRoomIsKeptIfABindingWasCarriedOutDespiteA404 verifies that the resources on the node stay
// reserved if the response to a binding is a 404 although the API server has carried it out, and
// the watch lags.
func TestRoomIsKeptIfABindingWasCarriedOutDespiteA404(t *testing.T) {
	inWorld(t, func(w *world) {
		a := withPriority(aPod("a", "1"), 1)
		w.api.SetFault(func(r *http.Request) (f fakeapi.Fault) {
			if isBinding(r, "a") {
				fakeapi.Change(w.api, a, func(p *v1.Pod) { p.Spec.NodeName = "n" })
				f.Status = http.StatusNotFound
			}
			return f
		})
		w.api.Put(aNode("n", "1"), a, aPod("b", "1"))
		w.api.Hold("pods")
		w.start(Options{})
		w.until("b is turned down", func() bool { return w.condition("b") != "" })
		w.pass(time.Minute)
		w.api.Release("pods")
		w.pass(time.Minute)
		w.checkRoom()
		if w.nodeOf("a") != "n" || w.nodeOf("b") != "" {
			t.Errorf("a on %q, b on %q", w.nodeOf("a"), w.nodeOf("b"))
		}
	})
}

func TestPodDeletedWhileItIsBound(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(1, func(r *http.Request) bool { return isBinding(r, "a") }, fakeapi.Fault{Late: 10 * time.Second}))
		a := aPod("a", "1")
		w.api.Put(aNode("n", "1"), a)
		w.start(Options{})
		w.pass(time.Second)
		w.api.Delete(a)
		w.api.Put(aPod("b", "1"))
		w.untilBound("b")
		w.pass(time.Minute)
		w.do(func() {
			if len(w.s.core.Books().Assumed) != 0 || w.s.core.View().Cluster.Pods() != 1 {
				t.Errorf("%d on their way, %d on nodes", len(w.s.core.Books().Assumed), w.s.core.View().Cluster.Pods())
			}
		})
	})
}

// TestPodMadeAnewUnderItsName verifies that if a pod is replaced by a pod of the same name during
// its binding, the second pod is not bound by that binding, and is scheduled separately.
func TestPodMadeAnewUnderItsName(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(1, func(r *http.Request) bool { return isBinding(r, "a") }, fakeapi.Fault{Late: 10 * time.Second}))
		first, second := aPod("a", "1"), aPod("a", "100m")
		second.UID = "another"
		second.Spec.NodeSelector = map[string]string{v1.LabelHostname: "m"}
		w.api.Put(aNode("n", "1"), first)
		w.start(Options{})
		w.pass(time.Second)
		w.api.Delete(first)
		w.api.Put(second, aNode("m", "1"))
		w.untilBound("a")
		if n := w.nodeOf("a"); n != "m" {
			t.Errorf("bound to %s", n)
		}
		w.pass(time.Minute)
		w.do(func() {
			if len(w.s.core.Books().Assumed) != 0 || w.s.core.View().Cluster.Pods() != 1 {
				t.Errorf("%d on their way, %d on nodes", len(w.s.core.Books().Assumed), w.s.core.View().Cluster.Pods())
			}
		})
	})
}

// TestNodeGoneBeforeTheBinding verifies that if a node is deleted, its pods whose bindings have not
// begun are decided again.
func TestNodeGoneBeforeTheBinding(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(4, func(r *http.Request) bool { return isBinding(r, "") }, fakeapi.Fault{Late: 10 * time.Second}))
		n := aNode("n", "9")
		w.api.Put(n)
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} { // four bindings are in flight, two are queued
			w.api.Put(aPod(name, "1"))
		}
		w.start(Options{})
		w.pass(time.Second)
		w.api.Delete(n)
		w.api.Put(aNode("m", "9"))
		w.pass(time.Minute)
		on := map[string]int{}
		for _, p := range w.api.Pods() {
			on[p.Spec.NodeName]++
		}
		if on["n"] != 4 || on["m"] != 2 {
			t.Errorf("%v, want the four that were under way on n and two on m", on)
		}
	})
}

func TestLostWatches(t *testing.T) {
	for name, forget := range map[string]bool{"cut": false, "too old": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				n := aNode("n", "1")
				w.api.Put(n, aNode("m", "1"), on(aPod("x", "1"), "n"), on(aPod("y", "1"), "m"), aPod("a", "1"))
				w.start(Options{})
				w.until("a is turned down", func() bool { return w.condition("a") != "" })
				w.api.Hold("pods")
				w.api.Hold("nodes")
				w.api.Delete(aPod("x", "1"))
				w.api.Put(aPod("b", "1"))
				w.api.Delete(n)
				w.api.Put(aNode("o", "1"))
				for _, resource := range []string{"nodes", "pods"} {
					w.api.Cut(resource, forget)
					w.api.Release(resource)
					w.pass(5 * time.Second)
				}
				w.pass(time.Minute)
				w.do(func() {
					if w.s.core.View().Cluster.Node("n") != nil || w.s.core.View().Cluster.Pod("uid-x") != nil {
						t.Error("what went meanwhile is still there")
					}
				})
				if a, b := w.nodeOf("a"), w.nodeOf("b"); a+b != "o" {
					t.Errorf("a on %q, b on %q; one of them fits on o", a, b)
				}
			})
		})
	}
}

// TestNothingIsDecidedBeforeAllIsKnown verifies that no pod is reported as unschedulable before all
// nodes have been listed.
func TestNothingIsDecidedBeforeAllIsKnown(t *testing.T) {
	inWorld(t, func(w *world) {
		begun := time.Now()
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			return fakeapi.Fault{Lost: strings.HasSuffix(r.URL.Path, "/nodes") && time.Since(begun) < 20*time.Second}
		})
		w.api.Put(aNode("n", "1"), aPod("a", "1"))
		w.start(Options{})
		w.pass(15 * time.Second)
		if w.s.Synced() || w.condition("a") != "" || w.nodeOf("a") != "" {
			t.Errorf("synced: %t, %q, on %q", w.s.Synced(), w.condition("a"), w.nodeOf("a"))
		}
		w.untilBound("a")
		if c := w.condition("a"); c != "" {
			t.Errorf("was told %q", c)
		}
	})
}

// TestEndWithBindingsUnderWay verifies that a stopping scheduler finishes the bindings in flight
// and begins no others, which the next scheduler sends.
func TestEndWithBindingsUnderWay(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if isBinding(r, "") {
				return fakeapi.Fault{Late: 3 * time.Second, Slow: 3 * time.Second}
			}
			return fakeapi.Fault{}
		})
		w.api.Put(aNode("n", "20"))
		for i := range 10 {
			w.api.Put(aPod(string(rune('a'+i)), "1"))
		}
		w.start(Options{})
		w.pass(time.Second)
		began := time.Now()
		w.end()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v to end", took)
		}
		if n := len(w.api.Bindings()); n != 4 {
			t.Errorf("%d bindings, want the 4 that were under way", n)
		}
		if len(w.api.Events()) != 4 {
			t.Errorf("%d events, want one for each", len(w.api.Events()))
		}
		w.pass(time.Hour)
		if n := len(w.api.Bindings()); n != 4 {
			t.Errorf("%d bindings after the end", n)
		}
		w.api.SetFault(nil)
		w.start(Options{})
		w.pass(time.Minute)
		if n := len(w.api.Bindings()); n != 10 {
			t.Errorf("%d bindings by both", n)
		}
	})
}

func TestOutage(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n", "2"), aPod("a", "1"))
		w.start(Options{})
		w.untilBound("a")
		w.api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Lost: true} })
		w.api.Put(aPod("b", "1"))
		w.api.Cut("pods", true)
		w.pass(10 * time.Minute)
		w.api.SetFault(nil)
		began := time.Now()
		w.untilBound("b")
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("bound %v after the API server was back", took)
		}
	})
}

// TestPodBoundBySomebodyElse verifies that if another client binds a pod to another node, the
// resources reserved on the decided node are released, and those on the actual node are counted.
func TestPodBoundBySomebodyElse(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(1, func(r *http.Request) bool { return isBinding(r, "a") }, fakeapi.Fault{Late: 5 * time.Second}))
		a := aPod("a", "1")
		w.api.Put(aNode("n", "1"), a)
		w.start(Options{})
		w.pass(time.Second)
		w.api.Put(aNode("m", "1"))
		fakeapi.Change(w.api, a, func(p *v1.Pod) { p.Spec.NodeName = "m" })
		w.api.Put(aPod("b", "1"))
		w.untilBound("b")
		if n := w.nodeOf("b"); n != "n" {
			t.Errorf("b on %s", n)
		}
		w.pass(time.Minute)
		w.checkRoom()
		w.do(func() {
			if len(w.s.core.Books().Assumed) != 0 || w.s.core.View().Cluster.Pod("uid-a").NodeName != "m" {
				t.Errorf("%d on their way, a on %s", len(w.s.core.Books().Assumed), w.s.core.View().Cluster.Pod("uid-a").NodeName)
			}
		})
	})
}

// TestBindingThatNoWatchShows verifies that if no watch delivers a bound pod, its resources stay
// reserved, the scheduler reads the pod, and a list shows the later state of the pod.
func TestBindingThatNoWatchShows(t *testing.T) {
	inWorld(t, func(w *world) {
		a := aPod("a", "1")
		w.api.Put(a)
		w.start(Options{})
		w.until("begun", w.s.Synced)
		w.pass(time.Minute)
		w.api.Hold("pods")
		w.api.Put(aNode("n", "1"))
		w.untilBound("a")
		w.pass(10 * time.Minute)
		w.do(func() {
			if len(w.s.core.Books().Assumed) != 0 || w.s.core.View().Cluster.Pods() != 1 {
				t.Errorf("%d on their way, %d on nodes", len(w.s.core.Books().Assumed), w.s.core.View().Cluster.Pods())
			}
		})
		w.api.Delete(a)
		w.api.Put(aPod("b", "1"))
		w.api.Cut("pods", true)
		w.api.Release("pods")
		w.untilBound("b")
		w.do(func() {
			if w.s.core.View().Cluster.Pod("uid-a") != nil {
				t.Error("a is still counted")
			}
		})
	})
}

// TestStandby verifies that a scheduler that does not lead watches the cluster, but writes nothing,
// and that it schedules the remaining pods when it leads.
func TestStandby(t *testing.T) {
	inWorld(t, func(w *world) {
		lead := make(chan struct{})
		w.api.Put(aNode("n", "1"), aPod("a", "1"), aPod("big", "9"))
		w.start(Options{Lead: lead})
		w.pass(time.Hour)
		if !w.s.Synced() || w.nodeOf("a") != "" || w.condition("big") != "" || len(w.api.Events()) != 0 {
			t.Errorf("synced %t, a on %q, %q, %d events", w.s.Synced(), w.nodeOf("a"), w.condition("big"), len(w.api.Events()))
		}
		fakeapi.Change(w.api, aPod("a", "1"), func(p *v1.Pod) { p.Spec.NodeName = "n" })
		w.pass(time.Second)
		w.do(func() {
			if w.s.core.View().Queue.Get("uid-a") != nil || w.s.core.View().Queue.Len(queue.Active) != 1 {
				t.Error("a was bound by the one that leads")
			}
		})
		close(lead)
		w.until("big is turned down", func() bool { return w.condition("big") != "" })
	})
}

// TestNewLeaderListsAnew verifies that a newly elected scheduler lists the pods, because its watch
// may not have delivered all bindings of the previous leader.
func TestNewLeaderListsAnew(t *testing.T) {
	inWorld(t, func(w *world) {
		lead := make(chan struct{})
		w.api.Put(aNode("n", "1"), aPod("next", "1"))
		w.start(Options{Lead: lead})
		w.until("it stands by", w.s.Synced)
		w.api.Hold("pods") // the watch stalls
		w.api.Put(on(aPod("before", "1"), "n"))
		w.pass(time.Minute)
		close(lead)
		w.until("next is rejected", func() bool { return w.condition("next") != "" })
		w.checkRoom()
		w.api.Release("pods")
	})
}

// TestNewLeaderListsClaimsAnew verifies that a newly elected scheduler lists the claims, because
// its watch may not have delivered all allocations of the previous leader.
func TestNewLeaderListsClaimsAnew(t *testing.T) {
	inWorld(t, func(w *world) {
		lead := make(chan struct{})
		w.api.Put(aNode("n", "9"))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aClaim("before"), aClaim("next"), claiming(aPod("before", "1"), "before"), claiming(aPod("next", "1"), "next"))
		w.start(Options{Lead: lead})
		w.until("it stands by", w.s.Synced)
		w.api.Hold("resourceclaims") // the watch stalls
		fakeapi.Change(w.api, aClaim("before"), func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "one", Driver: "gpu.example.com", Pool: "n", Device: "gpu-0"}},
			}}
			c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "before", UID: "uid-before"}}
		})
		fakeapi.Change(w.api, aPod("before", "1"), func(p *v1.Pod) { p.Spec.NodeName = "n" })
		w.pass(time.Minute)
		close(lead)
		w.until("next is rejected", func() bool { return w.condition("next") != "" || w.nodeOf("next") != "" })
		if w.claim("next").Status.Allocation != nil || w.nodeOf("next") != "" {
			t.Error("a device was given twice")
		}
		w.api.Release("resourceclaims")
	})
}

// TestConfigurationThatWasNotAppliedInTimeIsNotAppliedLater verifies that if SetProfiles returns an
// error because the owner did not apply the profiles in time, they are not applied later.
func TestConfigurationThatWasNotAppliedInTimeIsNotAppliedLater(t *testing.T) {
	inWorld(t, func(w *world) {
		// The scheduler does not start without the API server.
		w.api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Lost: true} })
		w.start(Options{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		other := plugins.Default()
		other.SchedulerName = "other"
		if err := w.s.SetProfiles(ctx, []cycle.Profile{{Profile: other}}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("applied without an owner: %v", err)
		}
		w.api.SetFault(nil)
		w.api.Put(aNode("n", "9"), aPod("a", "1"))
		w.untilBound("a")
	})
}

// TestNominationThatIsNotTakenIsWrittenAgain verifies that failed writes of a nomination are
// retried until they succeed, because the core requests the write only once, and autoscalers act on
// nominations.
func TestNominationThatIsNotTakenIsWrittenAgain(t *testing.T) {
	for name, f := range map[string]fakeapi.Fault{
		"refused": {Status: 500}, "lost": {Lost: true}, "unanswered": {Unanswered: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.SetFault(times(4, func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/pods/p/status") }, f))
				w.api.Put(aNode("n", "1"), on(slow(aPod("v", "1")), "n"), withPriority(aPod("p", "1"), 10))
				w.start(Options{})
				w.pass(10 * time.Second)
				if p := w.pod("p"); p.Status.NominatedNodeName != "n" || !strings.Contains(w.condition("p"), "Insufficient cpu") {
					t.Errorf("nominated to %q, told %q", p.Status.NominatedNodeName, w.condition("p"))
				}
			})
		})
	}
}

// TestStatusOfAPodThatIsGoneIsNotWrittenForEver verifies that the retries of a status write end
// when the watch delivers the deletion of the pod, or when the API server responds that the pod
// does not exist.
func TestStatusOfAPodThatIsGoneIsNotWrittenForEver(t *testing.T) {
	for _, shown := range []bool{true, false} {
		inWorld(t, func(w *world) {
			var tries, refusals atomic.Int32
			refusals.Store(20)
			w.api.SetFault(func(r *http.Request) fakeapi.Fault {
				if !strings.HasSuffix(r.URL.Path, "/pods/p/status") {
					return fakeapi.Fault{}
				}
				if tries.Add(1) > refusals.Load() {
					return fakeapi.Fault{}
				}
				return fakeapi.Fault{Status: 503}
			})
			w.api.Put(aNode("n", "1"), aPod("p", "2"))
			w.start(Options{})
			w.pass(time.Minute)
			want := tries.Load()
			if !shown { // two more attempts follow
				w.api.Hold("pods")
				refusals.Store(want + 1)
				want += 2
			}
			w.api.Delete(aPod("p", "2"))
			w.pass(2 * time.Minute)
			w.api.Release("pods")
			w.pass(time.Hour)
			if n := tries.Load(); n != want {
				t.Errorf("shown: %v: %d tries, want %d", shown, n, want)
			}
			w.s.podStatuses.mu.Lock()
			defer w.s.podStatuses.mu.Unlock()
			if len(w.s.podStatuses.pending) != 0 {
				t.Error("something is still to be written")
			}
		})
	}
}

// TestAConflictThatIsNotAboutTheVersionEndsAWrite verifies that a conflict is not retried if the
// version of the pod has not changed: a webhook may respond with conflicts repeatedly.
func TestAConflictThatIsNotAboutTheVersionEndsAWrite(t *testing.T) {
	inWorld(t, func(w *world) {
		var tries atomic.Int32
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if !strings.HasSuffix(r.URL.Path, "/pods/p/status") {
				return fakeapi.Fault{}
			}
			tries.Add(1)
			return fakeapi.Fault{Status: http.StatusConflict, Late: 10 * time.Millisecond}
		})
		w.api.Put(aNode("n", "1"), aPod("p", "2"))
		w.start(Options{})
		w.pass(time.Minute)
		if n := tries.Load(); n != 1 {
			t.Errorf("tried %d times", n)
		}
	})
}
