package live

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// heard counts the events that were written, by name.
type heard struct {
	mu    sync.Mutex
	names map[string]int
	last  *v1.Event
}

func (h *heard) write(_ context.Context, e *v1.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names[e.Name]++
	h.last = e
	return nil
}

func (h *heard) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.names)
}

// whileAnnouncing has events written while test runs, and ends that.
func whileAnnouncing(t *testing.T, write func(context.Context, *v1.Event) error, test func(a *announcing, busy *atomic.Bool)) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		a := &announcing{write: write, busy: busy.Load, more: make(chan struct{}, 1)}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); a.run(ctx) }()
		test(a, &busy)
		stop()
		<-ended
	})
}

func announce(a *announcing, n int) {
	for i := range n {
		a.add(announcement{"default-scheduler", v1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprint("web-", i)}, "n1", time.Now()})
	}
}

func TestEventsGiveWayToBindings(t *testing.T) {
	h := &heard{names: map[string]int{}}
	whileAnnouncing(t, h.write, func(a *announcing, busy *atomic.Bool) {
		busy.Store(true)
		announce(a, 5000)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := h.len(); n < 5*whileBusy || n > 12*whileBusy {
			t.Errorf("%d events within 10 s of bindings", n)
		}
		busy.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := h.len(); n != 5000 {
			t.Errorf("%d events a second after the last binding", n)
		}
	})
	e := h.last
	if e.Reason != "Scheduled" || e.Type != v1.EventTypeNormal || e.Source.Component != "default-scheduler" || e.Count != 1 ||
		e.Message != "Successfully assigned "+e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name+" to n1" {
		t.Errorf("wrote %+v", e)
	}
}

func TestWhatIsSaidAtTheEndIsStillWritten(t *testing.T) {
	h := &heard{names: map[string]int{}}
	whileAnnouncing(t, h.write, func(a *announcing, busy *atomic.Bool) {
		busy.Store(true)
		announce(a, 1000)
	})
	if n := h.len(); n != 1000 {
		t.Errorf("%d events of 1,000", n)
	}
}

func TestEventThatIsNotTakenIsWrittenAgain(t *testing.T) {
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, "web-0")
	for _, c := range []struct {
		errs []error
		want int
	}{
		{[]error{errors.New("reset"), nil}, 2},
		{[]error{errors.New("reset"), exists}, 2}, // the first was taken, and the answer lost
		{[]error{errors.New("reset")}, announceTries},
		{[]error{apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "web-0", errors.New("the namespace goes"))}, 1},
	} {
		tries := 0
		whileAnnouncing(t, func(context.Context, *v1.Event) error {
			tries++
			return c.errs[min(tries, len(c.errs))-1]
		}, func(a *announcing, _ *atomic.Bool) {
			announce(a, 1)
			time.Sleep(time.Minute)
		})
		if tries != c.want {
			t.Errorf("%v: %d tries, want %d", c.errs, tries, c.want)
		}
	}
}

func TestEveryPodThatIsBoundIsAnnouncedOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n1", "1000"))
		for i := range 50 {
			w.api.Put(aPod(fmt.Sprint("p", i), "100m"))
		}
		w.start(Options{})
		for i := range 50 {
			w.untilBound(fmt.Sprint("p", i))
		}
		w.end()
		if n := w.api.Events(); n != 50 {
			t.Errorf("%d events, want 50", n)
		}
	})
}
