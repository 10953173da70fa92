package live

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

func isClaimStatus(r *http.Request, claim string) bool {
	return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/resourceclaims/"+claim+"/status")
}

// sharers makes pods that share claim c, and whose node has its device.
func (w *world) sharers(pods int) (names []string) {
	w.api.Put(aNode("n", "64"), aNode("m", "64"), aClaim("c"))
	w.api.Put(aDriver("n", "gpu-0")...)
	for i := range pods {
		names = append(names, fmt.Sprintf("p%02d", i))
		w.api.Put(claiming(aPod(names[i], "1"), "c"))
	}
	return names
}

// reservedFor lists the names of the pods that claim c is reserved for, sorted.
func (w *world) reservedFor() (pods []string) {
	for _, r := range w.claim("c").Status.ReservedFor {
		pods = append(pods, r.Name)
	}
	slices.Sort(pods)
	return pods
}

// TestWriteForSeveralPodsFails: those who share the claim do not fail with the one that writes it
// first, and what became of that write does not matter.
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
				if failed := seen.ended[cycle.Errored]; failed > 1 {
					t.Errorf("%d attempts failed", failed)
				}
				if w.s.core.Books().Claims != 0 {
					t.Errorf("%d claims held", w.s.core.Books().Claims)
				}
			})
		})
	}
}

// TestOutageWhileAClaimIsWritten: nobody knows whether the allocation was written, and no pod is
// left to ask. Once the API server answers again, it is written.
func TestOutageWhileAClaimIsWritten(t *testing.T) {
	for _, pods := range []int{1, 30} {
		t.Run(fmt.Sprint(pods, " pods"), func(t *testing.T) {
			inWorld(t, func(w *world) {
				var down atomic.Int32 // 1: since the first write of the status
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

// TestRestartWithAReservedClaim: a scheduler that ended before the binding leaves claims that are
// allocated and reserved. The next one binds the pods where the devices are, and writes nothing.
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
