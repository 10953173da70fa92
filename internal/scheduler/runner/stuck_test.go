// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestPluginThatDoesNotReturnHoldsUpNoOtherPod verifies that other pods are bound while a plugin
// blocks all binders, and that the number of concurrent bindings is unchanged after the plugin has
// returned.
func TestPluginThatDoesNotReturnHoldsUpNoOtherPod(t *testing.T) {
	for _, point := range []string{"bind", "postbind"} {
		t.Run(point, func(t *testing.T) {
			inWorld(t, func(w *world) {
				o, returns := &outsider{name: "O", hangs: map[string]chan struct{}{}}, make(chan struct{})
				w.api.Put(aNode("n", "20"))
				for _, pod := range []string{"a", "b", "c", "d"} {
					o.hangs[point+" "+pod] = returns
					w.api.Put(aPod(pod, "1"))
				}
				w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
				w.pass(100 * time.Millisecond)
				w.api.Put(aPod("e", "1"))
				w.pass(patience)
				if w.nodeOf("e") != "n" {
					t.Error("e waits for a plugin that is at work for others")
				}
				close(returns)
				w.untilBound("a", "b", "c", "d")
				w.api.SetFault(func(r *http.Request) fakeapi.Fault {
					if isBinding(r, "") {
						return fakeapi.Fault{Late: 3 * time.Second}
					}
					return fakeapi.Fault{}
				})
				for _, pod := range []string{"f", "g", "h", "i", "j", "k", "l", "m"} {
					w.api.Put(aPod(pod, "1"))
				}
				before := len(w.api.Bindings())
				w.pass(4 * time.Second)
				if n := len(w.api.Bindings()) - before; n != 4 {
					t.Errorf("%d bindings at a time, want 4", n)
				}
				w.pass(3 * time.Second)
				if n := len(w.api.Bindings()) - before; n != 8 {
					t.Errorf("%d bindings, want 8", n)
				}
			})
		})
	}
}

// TestEndDoesNotWaitForAPluginThatDoesNotReturn verifies that a stopping scheduler waits for a
// plugin for finishWithin at most.
func TestEndDoesNotWaitForAPluginThatDoesNotReturn(t *testing.T) {
	for _, point := range []string{"prebind", "bind", "postbind"} {
		t.Run(point, func(t *testing.T) {
			inWorld(t, func(w *world) {
				returns := make(chan struct{})
				defer close(returns)
				o := &outsider{name: "O", slow: time.Millisecond, hangs: map[string]chan struct{}{point + " a": returns}}
				w.api.Put(aNode("n", "1"), aPod("a", "1"))
				w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
				w.pass(time.Minute)
				began := time.Now()
				w.end()
				if took := time.Since(began); took < finishWithin || took > finishWithin+drain+time.Second {
					t.Errorf("it took %v to end", took)
				}
			})
		})
	}
}

// TestEndDoesNotWaitForTheOwner verifies that Run returns errStuck in time if the owner is blocked
// in a plugin that does not return, because no pods are scheduled until the process has ended.
func TestEndDoesNotWaitForTheOwner(t *testing.T) {
	for _, point := range []string{"reserve", "permit"} {
		t.Run(point, func(t *testing.T) {
			inWorld(t, func(w *world) {
				returns := make(chan struct{})
				o := &outsider{name: "O", hangs: map[string]chan struct{}{point + " a": returns}}
				w.api.Put(aNode("n", "1"), aPod("a", "1"))
				w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
				w.pass(time.Minute)
				began := time.Now()
				w.stop()
				<-w.ended
				if took := time.Since(began); took < finishWithin || took > finishWithin+settleWithin+drain {
					t.Errorf("it took %v to end", took)
				}
				if !errors.Is(w.err, errStuck) {
					t.Errorf("it ended with %v", w.err)
				}
				w.stop = nil
				close(returns)
				w.pass(time.Minute)
				if node := w.nodeOf("a"); node != "" {
					t.Errorf("bound to %s after the end", node)
				}
			})
		})
	}
}

// hesitant is an extender that responds after an hour.
type hesitant struct{}

func (hesitant) Name() string                 { return "hesitant" }
func (hesitant) Interested(*cluster.Pod) bool { return true }
func (hesitant) Filter(*cluster.Cluster, *cluster.Pod, []*cluster.Node) (map[*cluster.Node]*plugins.Rejection, error) {
	return nil, &plugins.PendingQuery{Target: "hesitant", Run: func(context.Context) { time.Sleep(time.Hour) }}
}
func (hesitant) Score(*cluster.Cluster, *cluster.Pod, []*cluster.Node) ([]int64, error) {
	return nil, nil
}
func (hesitant) Spare(_ *cluster.Cluster, _ *cluster.Pod, places []plugins.Place) ([]plugins.Place, error) {
	return places, nil
}

// TestEndDoesNotWaitForAnExtender verifies that a stopping scheduler does not wait for the response
// of an extender.
func TestEndDoesNotWaitForAnExtender(t *testing.T) {
	inWorld(t, func(w *world) {
		profile := plugins.Default()
		profile.Extenders = []plugins.Extender{hesitant{}}
		w.api.Put(aNode("n", "1"), aPod("a", "1"))
		w.start(Options{Profiles: []cycle.Profile{{Profile: profile}}})
		w.pass(time.Minute)
		began := time.Now()
		w.end()
		if took := time.Since(began); took > drain+time.Second {
			t.Errorf("it took %v to end", took)
		}
		w.pass(time.Hour) // until the extender has responded
	})
}

// TestWebhookThatIsGoneDelaysWrites verifies that writes succeed although an unreachable webhook
// delays each of them by 40 s. If the scheduler canceled such writes earlier, no attempt would ever
// succeed.
func TestWebhookThatIsGoneDelaysWrites(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if r.Method == http.MethodGet {
				return fakeapi.Fault{}
			}
			return fakeapi.Fault{Late: 40 * time.Second}
		})
		w.api.Put(aNode("n", "1"), on(aPod("v", "1"), "n"), withPriority(aPod("p", "1"), 10))
		w.start(Options{})
		w.until("p is nominated", func() bool { return w.pod("p").Status.NominatedNodeName == "n" })
		w.until("v is gone", func() bool { return w.nodeOf("v") == "gone" })
		w.untilBound("p")
		w.pass(time.Minute)
		if n := len(w.api.Bindings()); n != 1 {
			t.Errorf("%d bindings", n)
		}
	})
}

// TestPodThatMayNotBeRead verifies that without the permission to read pods, an attempt ends with
// an error that states the failures of the binding and of the read, immediately if the binding was
// refused, and after writtenWithin if its response was lost.
func TestPodThatMayNotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		binding fakeapi.Fault
		within  time.Duration
	}{
		"refused": {fakeapi.Fault{Status: http.StatusConflict}, time.Second},
		"lost":    {fakeapi.Fault{Lost: true}, writtenWithin + lastPause + 10*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.SetFault(func(r *http.Request) fakeapi.Fault {
					switch {
					case isBinding(r, "a"):
						return c.binding
					case isPodGet(r, "a"):
						return fakeapi.Fault{Status: http.StatusForbidden}
					}
					return fakeapi.Fault{}
				})
				w.api.Put(aNode("n", "1"), aPod("a", "1"))
				w.start(Options{})
				w.pass(c.within)
				if text := w.condition("a"); !strings.Contains(text, "binding rejected: ") || !strings.Contains(text, "could not check whether the pod was bound") {
					t.Errorf("told %q", text)
				}
				w.api.SetFault(nil)
				w.untilBound("a")
			})
		})
	}
}

// TestPluginThatBindsAndMissesSomethingElse verifies that a pod that a Bind plugin has bound counts
// as bound, although the plugin returns a NotFound error about another object.
func TestPluginThatBindsAndMissesSomethingElse(t *testing.T) {
	inWorld(t, func(w *world) {
		o := &outsider{name: "O", binds: true}
		o.bind = func(a *cycle.Attempt) error {
			w.api.Hold("pods") // the watch does not deliver the bound pod before the plugin returns
			b := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: a.Pod.Namespace, Name: a.Pod.Name, UID: a.Pod.UID}, Target: v1.ObjectReference{Name: a.Node}}
			if err := w.s.client.CoreV1().Pods(a.Pod.Namespace).Bind(context.Background(), b, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
			return apierrors.NewNotFound(schema.GroupResource{Resource: "reservations"}, "r")
		}
		w.api.Put(aNode("n", "1"), aPod("a", "1"))
		w.start(Options{Profiles: []cycle.Profile{with(t, o)}})
		w.untilBound("a")
		w.pass(time.Second)
		w.api.Release("pods")
		w.saidInOrder(o.words(), "bind a", "postbind a", "end true a")
		if strings.Contains(o.words(), "unreserve a") {
			t.Errorf("given back though it is bound:\n%s", o.words())
		}
	})
}

// TestAnotherClaimOfTheNameIsNotTouched verifies that deleteClaim does not change a claim that has
// replaced the one to delete.
func TestAnotherClaimOfTheNameIsNotTouched(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(Options{})
		old, successor := aClaim("c"), aClaim("c")
		old.UID, old.ResourceVersion = "old", "1"
		successor.UID, successor.Finalizers = "successor", []string{resourcev1.Finalizer}
		w.api.Put(successor)
		if err := w.s.writer.deleteClaim(context.Background(), old); err != nil {
			t.Errorf("what has gone is to be deleted: %v", err)
		}
		if c := w.claim("c"); c == nil || len(c.Finalizers) != 1 {
			t.Errorf("left of the other claim: %v", c)
		}
	})
}

// TestDevicesThatAreServedLater verifies that if the API server begins to serve the device kinds,
// pods with claims are decided without a restart of the scheduler, whether it begins to lead before
// or after that.
func TestDevicesThatAreServedLater(t *testing.T) {
	for _, leads := range []string{"all the time", "before", "after"} {
		t.Run("leads "+leads, func(t *testing.T) {
			inWorld(t, func(w *world) {
				lead := make(chan struct{})
				o := Options{Lead: lead}
				switch leads {
				case "all the time":
					o.Lead = nil
				case "before":
					close(lead)
				}
				w.api.SetFault(func(r *http.Request) fakeapi.Fault {
					if strings.HasPrefix(r.URL.Path, "/apis/resource.k8s.io/") {
						return fakeapi.Fault{Status: http.StatusNotFound}
					}
					return fakeapi.Fault{}
				})
				w.api.Put(aNode("n", "9"))
				w.api.Put(aDriver("n", "gpu-0")...)
				w.api.Put(aClaim("c"), claiming(aPod("p", "1"), "c"), aPod("q", "1"))
				w.start(o)
				w.pass(10 * time.Minute)
				if n := w.nodeOf("p"); n != "" || leads != "after" && w.nodeOf("q") != "n" {
					t.Errorf("p on %q, q on %q, want q on n alone", n, w.nodeOf("q"))
				}
				w.api.SetFault(nil)
				w.pass(2 * devicesAgain)
				if leads == "after" {
					close(lead)
				}
				w.untilBound("p", "q")
				if w.claim("c").Status.Allocation == nil {
					t.Error("bound without its device")
				}
			})
		})
	}
}

// TestDevicesThatMayNotBeRead verifies that if the API server begins to serve the device kinds, but
// claims cannot be read, pods without claims are still scheduled.
func TestDevicesThatMayNotBeRead(t *testing.T) {
	inWorld(t, func(w *world) {
		refuse := func(path string, status int) {
			w.api.SetFault(func(r *http.Request) fakeapi.Fault {
				if strings.HasPrefix(r.URL.Path, path) {
					return fakeapi.Fault{Status: status}
				}
				return fakeapi.Fault{}
			})
		}
		refuse("/apis/resource.k8s.io/", http.StatusNotFound)
		w.api.Put(aNode("n", "9"))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aClaim("c"), claiming(aPod("p", "1"), "c"))
		w.start(Options{})
		w.pass(time.Second)
		refuse("/apis/resource.k8s.io/v1/resourceclaims", http.StatusForbidden)
		w.pass(2 * devicesAgain)
		w.api.Put(aPod("q", "1"))
		w.pass(time.Second)
		if w.nodeOf("q") != "n" {
			t.Error("q waits for what it does not need")
		}
		w.api.SetFault(nil)
		w.pass(2 * devicesAgain)
		w.untilBound("p")
	})
}

// TestEndDoesNotWaitForAnAnswerAboutDevices verifies that a stopping scheduler does not wait for a
// request for the device kinds that hangs, at the start or later.
func TestEndDoesNotWaitForAnAnswerAboutDevices(t *testing.T) {
	for when, within := range map[string]time.Duration{"at the start": time.Second, "later": devicesAgain + time.Second} {
		t.Run(when, func(t *testing.T) {
			inWorld(t, func(w *world) {
				began := time.Now()
				w.api.SetFault(func(r *http.Request) fakeapi.Fault {
					switch {
					case !strings.HasPrefix(r.URL.Path, "/apis/resource.k8s.io/"):
						return fakeapi.Fault{}
					case when == "later" && time.Since(began) < devicesAgain/2:
						return fakeapi.Fault{Status: http.StatusNotFound}
					}
					return fakeapi.Fault{Late: time.Hour}
				})
				w.start(Options{})
				w.pass(within)
				told := time.Now()
				w.end()
				if took := time.Since(told); took > drain+time.Second {
					t.Errorf("it took %v to end", took)
				}
			})
		})
	}
}
