// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestAJournalGoesOnWithAnotherCore verifies that when a journal continues in other files, pending
// pods stay pending and are placed when they fit, no pod is bound twice, and each file can be
// replayed independently with the same result.
func TestAJournalGoesOnWithAnotherCore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.limits = records.Limits{Size: 400_000}
		ready := 0
		o := Options{Ready: func() { ready++ }}
		n := aNode("n", "200")
		n.Status.Allocatable[v1.ResourcePods] = *many()
		w.api.Put(n, aPod("large", "150"))
		w.start(o)
		w.until("the large pod is placed", func() bool { return len(w.api.Bindings()) == 1 })
		noted := aPod("waits", "100")
		noted.Annotations = map[string]string{"note": "as it is"}
		w.api.Put(noted)
		for i := range 300 {
			w.api.Put(aPod(fmt.Sprint("p", i), "100m"))
			w.pass(time.Second)
		}
		w.api.Put(noted.DeepCopy()) // an unchanged pod has no effect
		w.pass(time.Second)
		outside := cycle.Profile{Profile: plugins.Default(), Extensions: []cycle.Extension{&onlooker{}}}
		if err := w.s.SetProfiles(w.Context(), []cycle.Profile{outside}, nil); err == nil || !strings.Contains(err.Error(), "--journal") {
			t.Errorf("a plugin that wants pods as they are is taken: %v", err)
		}
		w.api.Put(aNode("m", "200"))
		w.until("the pod that waited is placed", func() bool { return len(w.api.Bindings()) == 302 })
		if ready != 1 {
			t.Errorf("it said %d times that scheduling begins", ready)
		}
		w.end()
		if w.files < 2 {
			t.Errorf("%d files", w.files)
		}
	})
}

// TestAnotherCoreKnowsHowPodsWait verifies that when a journal continues in another file, the
// back-off of pods and the other states of the queue do not change.
func TestAnotherCoreKnowsHowPodsWait(t *testing.T) {
	inWorld(t, func(w *world) {
		w.limits = records.Limits{Size: 400_000}
		w.api.Put(aNode("n", "10"), aPod("waits", "100"))
		w.start(Options{FirstBackoff: time.Hour, LastBackoff: 2 * time.Hour, MaxWait: 24 * time.Hour})
		w.until("the pod was tried", func() bool { return w.condition("waits") != "" })
		waiting := func() (item queue.Item) {
			w.do(func() {
				if found := w.s.core.View().Queue.Get("uid-waits"); found != nil {
					item = *found
				}
			})
			return item
		}
		before := waiting()
		first := w.s.core
		for i := 0; first == w.s.core && i < 2000; i++ {
			n := aNode("m", "1")
			n.Annotations = map[string]string{"heartbeat": fmt.Sprint(i)}
			w.api.Put(n)
			w.pass(time.Second)
		}
		if first == w.s.core {
			t.Fatal("the journal stays in its file")
		}
		w.pass(time.Second)
		after := waiting()
		if before.Attempts == 0 || after.Attempts != before.Attempts || !after.Since.Equal(before.Since) || !after.Ready().Equal(before.Ready()) ||
			after.Place() != before.Place() || after.Message != before.Message {
			t.Errorf("before: %s, %d attempts, ready %v, since %v\nafter: %s, %d attempts, ready %v, since %v", before.Place(), before.Attempts,
				before.Ready(), before.Since, after.Place(), after.Attempts, after.Ready(), after.Since)
		}
		w.end()
		if w.files < 2 {
			t.Errorf("%d files", w.files)
		}
	})
}

// TestAJournalIsBoundedWhileAListFails verifies that if the old core never becomes calm because a
// list fails, the journal does not continue in another file and ends at its limit, and that pods
// are still scheduled.
func TestAJournalIsBoundedWhileAListFails(t *testing.T) {
	inWorld(t, func(w *world) {
		w.limits = records.Limits{Size: 400_000}
		w.api.Put(aNode("n", "1"))
		w.start(Options{})
		w.pass(time.Second)
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if strings.HasSuffix(r.URL.Path, "/persistentvolumes") && !r.URL.Query().Has("watch") {
				return fakeapi.Fault{Status: http.StatusInternalServerError}
			}
			return fakeapi.Fault{}
		})
		w.api.Cut("persistentvolumes", true)
		w.pass(time.Second)
		first := w.s.core
		for i := range 100 {
			n := aNode("n", "1")
			n.Labels = map[string]string{"heartbeat": fmt.Sprint(i, strings.Repeat(".", 10_000))}
			w.api.Put(n)
			w.pass(time.Second)
		}
		if w.s.core != first {
			t.Error("the journal went on in another file: no list failed")
		}
		w.api.Put(aPod("p", "1"))
		w.untilBound("p")
		writer := w.writer
		w.writer = nil // the journal is incomplete, so it is not replayed
		w.end()
		if err := writer.Close(w.Context()); !errors.Is(err, records.ErrFull) {
			t.Errorf("it ended with %v", err)
		}
		files, err := records.Files(w.journal)
		if err != nil || len(files) != 1 {
			t.Fatalf("%q, %v", files, err)
		}
		if info, err := os.Stat(files[0]); err != nil || info.Size() > w.limits.Size {
			t.Errorf("%d bytes of at most %d: %v", info.Size(), w.limits.Size, err)
		}
	})
}

// TestAnotherCoreKnowsWhatWasSeenMeanwhile verifies that if a failing list delays the takeover by a
// new core, the new core gets the changes of nodes and pods, and the decisions, of the meantime.
func TestAnotherCoreKnowsWhatWasSeenMeanwhile(t *testing.T) {
	inWorld(t, func(w *world) {
		w.limits = records.Limits{Size: 1 << 30, Age: 40 * time.Minute} // due after ten minutes
		leaves := on(aPod("leaves", "3"), "n")
		w.api.Put(aNode("n", "4"), aNode("old", "4"), leaves)
		w.start(Options{})
		w.pass(9 * time.Minute)
		w.api.SetFault(func(r *http.Request) fakeapi.Fault {
			if strings.HasSuffix(r.URL.Path, "/persistentvolumes") && !r.URL.Query().Has("watch") {
				return fakeapi.Fault{Status: http.StatusInternalServerError}
			}
			return fakeapi.Fault{}
		})
		w.api.Cut("persistentvolumes", true)
		first := w.s.core
		beats := 0
		w.until("another core is ready", func() (ready bool) {
			n := aNode("n", "4")
			n.Annotations = map[string]string{"heartbeat": fmt.Sprint(beats)}
			w.api.Put(n)
			beats++
			w.do(func() { ready = w.s.renewal.next != nil && w.s.renewal.next.full() })
			return ready
		})

		w.api.Delete(aNode("old", "4"))
		w.api.Put(aNode("new", "2"))
		w.pass(time.Second)
		w.api.Put(aPod("meanwhile", "2"))
		w.untilBound("meanwhile")
		w.api.Delete(leaves)
		w.pass(time.Second)
		if w.s.core != first {
			t.Fatal("the other core took over while a list failed")
		}

		w.api.SetFault(nil)
		w.pass(30 * time.Second)
		if w.s.core == first {
			t.Fatal("the other core did not take over")
		}
		if nodes := w.s.Sizes().Nodes; nodes != 2 {
			t.Errorf("the other core knows %d nodes", nodes)
		}
		w.api.Put(aPod("large", "4"), aPod("none", "1"))
		w.untilBound("large")
		w.until("the other pod waits", func() bool { return w.condition("none") != "" })
		if got := w.nodeOf("meanwhile") + " " + w.nodeOf("large"); got != "new n" {
			t.Errorf("pods are on %s", got)
		}
		w.checkRoom()
		w.end()
		if w.files != 2 {
			t.Errorf("%d files", w.files)
		}
	})
}

// TestAnotherCoreTakesOverInItsOwnRound verifies that events are handled between the last objects
// that the new core gets and its takeover, since both take time.
func TestAnotherCoreTakesOverInItsOwnRound(t *testing.T) {
	inWorld(t, func(w *world) {
		w.limits = records.Limits{Size: 1 << 30}
		w.api.Put(aNode("n", "4"), aPod("waits", "5"))
		w.start(Options{})
		w.until("the pod was tried", func() bool { return w.condition("waits") != "" })
		w.pass(time.Second)
		w.do(func() {
			first := w.s.core
			w.s.beginRenewal(w.s.loop.Now())
			for w.s.renewal.next != nil && !w.s.renewal.next.full() {
				w.s.continueRenewal(w.s.loop.Now())
			}
			if w.s.core != first {
				t.Error("the new core took over in the round in which it got objects")
			}
			if w.s.continueRenewal(w.s.loop.Now()); w.s.core == first {
				t.Error("the new core did not take over in the next round")
			}
		})
		w.end()
	})
}
