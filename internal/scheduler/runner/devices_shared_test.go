// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

func isClaimStatus(r *http.Request, claim string) bool {
	return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/resourceclaims/"+claim+"/status")
}

// sharers creates pods that share claim c, and two nodes, one of them with a device.
func (w *world) sharers(pods int) (names []string) {
	w.api.Put(aNode("n", "64"), aNode("m", "64"), aClaim("c"))
	w.api.Put(aDriver("n", "gpu-0")...)
	for i := range pods {
		names = append(names, fmt.Sprintf("p%02d", i))
		w.api.Put(claiming(aPod(names[i], "1"), "c"))
	}
	return names
}

// reservedFor returns the sorted names of the pods for which claim c is reserved.
func (w *world) reservedFor() (pods []string) {
	for _, r := range w.claim("c").Status.ReservedFor {
		pods = append(pods, r.Name)
	}
	slices.Sort(pods)
	return pods
}

// TestPodsOfAClaimAreReservedTogether verifies that the writer for one pod adds the reservations of
// the waiting pods, so that the claim is written only twice.
func TestPodsOfAClaimAreReservedTogether(t *testing.T) {
	inWorld(t, func(w *world) {
		var writes atomic.Int32
		w.api.SetFault(counted(&writes, func(r *http.Request) bool { return isClaimWrite(r, "c") }, func(r *http.Request) (f fakeapi.Fault) {
			if isClaimWrite(r, "c") {
				f.Late = time.Second
			}
			return f
		}))
		names := w.sharers(30)
		w.start(Options{})
		w.untilBound(names...)
		if reserved := w.reservedFor(); !slices.Equal(reserved, names) {
			t.Errorf("reserved for %v", reserved)
		}
		if n := writes.Load(); n != 2 { // the finalizer and the status
			t.Errorf("the claim was written %d times", n)
		}
	})
}

// TestWriteForSeveralPodsFails verifies that if a write with the reservations of several pods
// fails, at most the attempt of the writing pod fails, and that all pods are bound in the end.
func TestWriteForSeveralPodsFails(t *testing.T) {
	const second = time.Second
	for name, fault := range map[string]fakeapi.Fault{
		"refused":              {Late: second, Status: http.StatusForbidden},
		"a conflict":           {Late: second, Status: http.StatusConflict},
		"lost":                 {Late: second, Lost: true},
		"carried out unheard":  {Late: second, Unanswered: true},
		"carried out too late": {Slow: 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.SetFault(times(1, func(r *http.Request) bool { return isClaimStatus(r, "c") }, fault))
				names := w.sharers(30)
				var seen attempts
				w.start(Options{Observer: &seen})
				w.untilBound(names...)
				w.pass(time.Minute)
				if reserved := w.reservedFor(); !slices.Equal(reserved, names) {
					t.Errorf("reserved for %v", reserved)
				}
				if failed := seen.ended[cycle.Errored]; (failed == 1) != (fault.Status == http.StatusForbidden) || failed > 1 {
					t.Errorf("%d attempts failed", failed)
				}
				if w.s.core.Books().Claims != 0 {
					t.Errorf("%d claims held", w.s.core.Books().Claims)
				}
			})
		})
	}
}

// TestOutageWhileAClaimIsWritten verifies that if all requests for the claim fail for two minutes
// after the first write of its status, all pods are bound with their reservations after the outage.
func TestOutageWhileAClaimIsWritten(t *testing.T) {
	for _, pods := range []int{1, 30} {
		t.Run(fmt.Sprint(pods, " pods"), func(t *testing.T) {
			inWorld(t, func(w *world) {
				var down atomic.Int32 // 1 after the first write of the status, 2 after the outage
				w.api.SetFault(func(r *http.Request) fakeapi.Fault {
					if isClaimStatus(r, "c") {
						down.CompareAndSwap(0, 1)
					}
					if down.Load() == 1 && strings.Contains(r.URL.Path, "/resourceclaims/c") {
						return fakeapi.Fault{Status: http.StatusInternalServerError}
					}
					return fakeapi.Fault{}
				})
				names := w.sharers(pods)
				w.start(Options{})
				w.pass(2 * time.Minute)
				down.Store(2)
				w.untilBound(names...)
				if reserved := w.reservedFor(); !slices.Equal(reserved, names) {
					t.Errorf("reserved for %v", reserved)
				}
			})
		})
	}
}

// TestPodGoesWhileAnotherWritesForIt verifies that the reservation of a deleted pod is removed,
// whether it was already in the write of another pod or only waited for it.
func TestPodGoesWhileAnotherWritesForIt(t *testing.T) {
	for name, of := range map[string]func(*http.Request, string) bool{"in the write": isClaimStatus, "waiting": isClaimUpdate} {
		for how, fault := range map[string]fakeapi.Fault{"late": {Late: 10 * time.Second}, "slow": {Slow: 10 * time.Second}} {
			t.Run(name+", "+how, func(t *testing.T) {
				inWorld(t, func(w *world) {
					once := times(1, func(r *http.Request) bool { return of(r, "c") }, fault)
					w.api.SetFault(func(r *http.Request) fakeapi.Fault {
						f := once(r)
						if f == (fakeapi.Fault{}) && isClaimUpdate(r, "c") {
							f.Late = 2 * time.Second // so that all pods wait before the status is written
						}
						return f
					})
					w.sharers(1)
					w.start(Options{})
					w.until("begun", w.s.Synced)
					w.api.Put(claiming(aPod("p01", "1"), "c"), claiming(aPod("p02", "1"), "c"))
					w.pass(5 * time.Second)
					w.api.Delete(aPod("p02", "1"))
					w.untilBound("p00", "p01")
					w.pass(time.Minute)
					claim := w.claim("c")
					if reserved := w.reservedFor(); !slices.Equal(reserved, []string{"p00", "p01"}) || claim.Status.Allocation == nil ||
						!slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
						t.Errorf("reserved for %v, %+v", reserved, claim)
					}
					if w.s.core.Books().Claims != 0 {
						t.Errorf("%d claims held", w.s.core.Books().Claims)
					}
				})
			})
		}
	}
}

// TestRestartWithAReservedClaim verifies that if a scheduler ends after it reserved a claim, but
// before it bound the pods, the next scheduler binds the pods to the node of the device without
// writing the claim.
func TestRestartWithAReservedClaim(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(func(r *http.Request) fakeapi.Fault { return fakeapi.Fault{Lost: isBinding(r, "")} })
		names := w.sharers(3)
		w.start(Options{})
		w.until("the claim is reserved", func() bool { return len(w.reservedFor()) == 3 })
		w.end()
		var writes atomic.Int32
		w.api.SetFault(counted(&writes, func(r *http.Request) bool { return isClaimWrite(r, "c") || isClaimPatch(r) },
			func(*http.Request) fakeapi.Fault { return fakeapi.Fault{} }))
		w.start(Options{})
		w.untilBound(names...)
		if writes.Load() != 0 || w.nodeOf("p00") != "n" || w.nodeOf("p02") != "n" {
			t.Errorf("%d writes, on %s and %s", writes.Load(), w.nodeOf("p00"), w.nodeOf("p02"))
		}
	})
}

// TestClaimThatIsOnlyWrittenNominatesNoPod verifies that a pod is not nominated if only its claim
// must be written before the binding, but is nominated if its device must become ready first.
func TestClaimThatIsOnlyWrittenNominatesNoPod(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint("waits ", waits), func(t *testing.T) {
			inWorld(t, func(w *world) {
				var patches atomic.Int32
				w.api.SetFault(counted(&patches, func(r *http.Request) bool { return isPodPatch(r, "p00") },
					func(*http.Request) fakeapi.Fault { return fakeapi.Fault{} }))
				w.sharers(1)
				if waits {
					slice := aDriver("n", "gpu-0")[0].(*resourcev1.ResourceSlice)
					slice.Spec.Devices[0].BindingConditions = []string{"ready"}
					slice.Spec.Devices[0].BindingFailureConditions = []string{"broken"}
					w.api.Put(slice)
				}
				w.start(Options{})
				w.pass(10 * time.Second)
				pod := w.api.Pods()[0]
				if waits && (pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "n") ||
					!waits && (pod.Spec.NodeName != "n" || patches.Load() != 0) {
					t.Errorf("on %q, nominated to %q, %d patches", pod.Spec.NodeName, pod.Status.NominatedNodeName, patches.Load())
				}
			})
		})
	}
}
