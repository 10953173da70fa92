// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// oneDevice starts a scheduler with one node, one device, and two claims for it. It then holds the
// watch of claims.
func (w *world) oneDevice() {
	w.api.Put(aNode("n", "9"))
	w.api.Put(aDriver("n", "gpu-0")...)
	w.api.Put(aClaim("c1"), aClaim("c2"))
	w.start(Options{})
	w.until("begun", w.s.Synced)
	w.api.Hold("resourceclaims")
}

// holders returns the names of the claims to which the device is allocated.
func (w *world) holders() (claims []string) {
	for _, name := range []string{"c1", "c2"} {
		if c := w.claim(name); c != nil && c.Status.Allocation != nil {
			claims = append(claims, name)
		}
	}
	return claims
}

func isClaimGet(r *http.Request, claim string) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/resourceclaims/"+claim)
}

// unheardWrite returns a function that injects the fault write into the first write of claim c1's
// status, and then, for the duration unread, the fault read into reads of the claim.
func unheardWrite(write, read fakeapi.Fault, unread time.Duration) func(*http.Request) fakeapi.Fault {
	var mu sync.Mutex
	var written time.Time
	return func(r *http.Request) fakeapi.Fault {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case isClaimStatus(r, "c1") && written.IsZero():
			written = time.Now()
			return write
		case isClaimGet(r, "c1") && !written.IsZero() && time.Since(written) < unread:
			return read
		}
		return fakeapi.Fault{}
	}
}

// TestUnheardAllocationIsGivenToNobodyElse verifies that if the API server carries out the write of
// an allocation, but the response is lost or late, the device is not allocated to another pod, even
// before the watch delivers the allocation.
func TestUnheardAllocationIsGivenToNobodyElse(t *testing.T) {
	const second = time.Second
	unheard := fakeapi.Fault{Late: second, Unanswered: true}
	for name, one := range map[string]struct{ write, read fakeapi.Fault }{
		"the claim is read at once": {write: unheard},
		"the claim is read later":   {write: unheard, read: fakeapi.Fault{Lost: true}},
		"the claim may not be read": {write: unheard, read: fakeapi.Fault{Status: http.StatusForbidden}},
		"the answer is late":        {write: fakeapi.Fault{Slow: 3 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.oneDevice()
				w.api.SetFault(unheardWrite(one.write, one.read, 5*time.Minute))
				w.api.Put(claiming(aPod("a", "1"), "c1"))
				w.pass(second / 2)
				w.api.Put(claiming(aPod("b", "1"), "c2"))
				w.pass(10 * time.Minute)
				if had := w.holders(); !slices.Equal(had, []string{"c1"}) || w.nodeOf("a") != "n" || w.nodeOf("b") != "" {
					t.Errorf("allocated: %v, a on %q, b on %q", had, w.nodeOf("a"), w.nodeOf("b"))
				}
				w.api.Release("resourceclaims")
				w.pass(time.Minute)
				if n := w.s.core.Books().Claims; n != 0 {
					t.Errorf("%d claims held", n)
				}
			})
		})
	}
}

// TestPodGoesDuringItsUnheardWrite verifies the behavior if the pod is deleted during a write of
// its claim without a response. If the write was carried out, the reservation is removed. If the
// write was lost, another pod gets the device, but only after the write can no longer be carried
// out.
func TestPodGoesDuringItsUnheardWrite(t *testing.T) {
	for name, fault := range map[string]fakeapi.Fault{
		"carried out": {Late: 2 * time.Second, Unanswered: true}, "lost": {Late: 2 * time.Second, Lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.oneDevice()
				w.api.SetFault(unheardWrite(fault, fakeapi.Fault{Lost: true}, 10*time.Second))
				w.api.Put(claiming(aPod("a", "1"), "c1"))
				w.pass(time.Second)
				w.api.Put(claiming(aPod("b", "1"), "c2"))
				w.pass(100 * time.Millisecond)
				w.api.Delete(aPod("a", "1"))
				if fault.Unanswered {
					w.pass(5 * time.Minute)
					if had := w.holders(); !slices.Equal(had, []string{"c1"}) || len(w.claim("c1").Status.ReservedFor) != 0 {
						t.Errorf("allocated: %v, reserved for %v", had, w.claim("c1").Status.ReservedFor)
					}
					w.api.Release("resourceclaims")
					fakeapi.Change(w.api, aClaim("c1"), func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} })
				} else {
					w.pass(writtenWithin - 5*time.Second)
					if w.nodeOf("b") != "" {
						t.Error("b has the device while the write may still arrive")
					}
				}
				w.untilBound("b")
				if had := w.holders(); !slices.Equal(had, []string{"c2"}) {
					t.Errorf("allocated: %v", had)
				}
				w.api.Release("resourceclaims")
				w.pass(time.Minute)
				if n := w.s.core.Books().Claims; n != 0 {
					t.Errorf("%d claims held", n)
				}
			})
		})
	}
}

// TestClaimGoesDuringItsUnheardWrite verifies that if a claim is deleted during a write without a
// response, its device becomes free when the claim is read, or, if it cannot be read, when the
// watch delivers the deletion.
func TestClaimGoesDuringItsUnheardWrite(t *testing.T) {
	for name, read := range map[string]fakeapi.Fault{"read later": {Lost: true}, "not to be read": {Status: http.StatusForbidden}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.oneDevice()
				// If the write is lost, no watch delivers an allocation.
				write := fakeapi.Fault{Late: 2 * time.Second, Unanswered: true, Lost: read.Status != 0}
				w.api.SetFault(unheardWrite(write, read, 10*time.Second))
				w.api.Put(claiming(aPod("a", "1"), "c1"))
				w.pass(5 * time.Second)
				w.api.Put(claiming(aPod("b", "1"), "c2"))
				w.api.Delete(aPod("a", "1"))
				w.api.Delete(aClaim("c1"))
				if read.Status != 0 {
					w.pass(time.Minute)
					w.api.Release("resourceclaims")
				}
				w.untilBound("b")
				w.api.Release("resourceclaims")
				w.pass(time.Minute)
				if n := w.s.core.Books().Claims; n != 0 {
					t.Errorf("%d claims held", n)
				}
			})
		})
	}
}

// TestRestartDuringAnUnheardWrite verifies that the scheduler ends in time although it cannot
// determine the outcome of a write, and that the next scheduler uses the allocation that it lists.
func TestRestartDuringAnUnheardWrite(t *testing.T) {
	for name, fault := range map[string]fakeapi.Fault{"unheard": {Unanswered: true}, "hangs": {Slow: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.oneDevice()
				w.api.SetFault(unheardWrite(fault, fakeapi.Fault{Lost: true}, time.Hour))
				w.api.Put(claiming(aPod("a", "1"), "c1"))
				w.pass(time.Second)
				w.api.Put(claiming(aPod("b", "1"), "c2"))
				w.pass(5 * time.Second)
				began := time.Now()
				w.end()
				if took := time.Since(began); took > finishWithin+settleWithin {
					t.Errorf("it took %v to end", took)
				}
				w.api.SetFault(nil)
				w.api.Release("resourceclaims")
				w.start(Options{})
				w.untilBound("a")
				w.pass(time.Minute)
				if had := w.holders(); !slices.Equal(had, []string{"c1"}) || w.nodeOf("b") != "" {
					t.Errorf("allocated: %v, b on %q", had, w.nodeOf("b"))
				}
			})
		})
	}
}
