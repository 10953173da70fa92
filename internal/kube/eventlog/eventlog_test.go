package eventlog

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

func about(pod string) v1.ObjectReference {
	return v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: pod, UID: "u-1"}
}

// TestNoEventIsDroppedForBeingOneOfMany adds as many as a zone has pods, faster
// than they can be written; client-go's broadcaster would keep a thousand.
func TestNoEventIsDroppedForBeingOneOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 5000
		var written atomic.Int64
		client := &fake.Clientset{}
		client.AddReactor("create", "events", func(a ktesting.Action) (bool, runtime.Object, error) {
			written.Add(1)
			return true, a.(ktesting.CreateAction).GetObject(), nil
		})
		log := New(client, "taint-eviction-controller")
		for i := range many {
			log.Add(about(fmt.Sprintf("p-%d", i)), v1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		began := time.Now()
		go func() { defer close(ended); log.Run(ctx) }()
		for written.Load() < many {
			if time.Since(began) > time.Hour {
				t.Fatalf("%d of %d written", written.Load(), many)
			}
			time.Sleep(5 * time.Second)
		}
		if took := time.Since(began); took < (many-2*perSecond)/perSecond*time.Second {
			t.Errorf("written in %v, faster than %d a second", took, perSecond)
		}
		cancel()
		<-ended
	})
}

// TestEventIsWrittenInSpiteOfAFailure, and names the object by UID, so that
// kubectl describe finds it.
func TestEventIsWrittenInSpiteOfAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		fails := 2
		client.PrependReactor("create", "events", func(ktesting.Action) (bool, runtime.Object, error) {
			fails--
			return fails >= 0, nil, errors.New("not now")
		})
		log := New(client, "node-controller")
		log.Add(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: "n", UID: "u"}, v1.EventTypeNormal, "NodeNotReady", "Node n status is now: NodeNotReady")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); log.Run(ctx) }()
		time.Sleep(time.Minute)
		list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%v, %d events, want 1", err, len(list.Items))
		}
		if e := list.Items[0]; e.InvolvedObject.UID != "u" || e.Source.Component != "node-controller" || e.Count != 1 {
			t.Errorf("event %+v", e)
		}
		cancel()
		<-ended
	})
}

// TestRepeatedEventIsCounted, not written again.
func TestRepeatedEventIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		log := New(client, "taint-eviction-controller")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); log.Run(ctx) }()
		for range 3 {
			log.Add(about("p"), v1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod default/p")
			time.Sleep(time.Second)
		}
		list, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Count != 3 {
			t.Errorf("%v, %+v, want one event that counts 3", err, list.Items)
		}
		cancel()
		<-ended
	})
}

// running has a log write events with create while test runs, and ends it.
func running(t *testing.T, create func(*v1.Event) error, test func(log *Log, busy *atomic.Bool)) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		log := New(fake.NewClientset(), "default-scheduler")
		log.Busy, log.Drain = busy.Load, 2*time.Second
		log.Create = func(_ context.Context, e *v1.Event) error { return create(e) }
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); log.Run(ctx) }()
		test(log, &busy)
		stop()
		<-ended
	})
}

func tellOnce(log *Log, n int) {
	for i := range n {
		log.Tell(Event{About: about(fmt.Sprint("web-", i)), Type: v1.EventTypeNormal, Reason: "Scheduled", Message: "Successfully assigned", Once: true})
	}
}

// names counts the events that were written, by name.
type names struct{ sync.Map }

func (n *names) create(e *v1.Event) error { n.Store(e.Name, true); return nil }

func (n *names) len() (count int) {
	n.Range(func(any, any) bool { count++; return true })
	return count
}

func TestEventsGiveWayToWork(t *testing.T) {
	var written names
	running(t, written.create, func(log *Log, busy *atomic.Bool) {
		busy.Store(true)
		tellOnce(log, 5000)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := written.len(); n < 5*perSecond || n > 12*perSecond {
			t.Errorf("%d events within 10 busy seconds", n)
		}
		busy.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := written.len(); n != 5000 {
			t.Errorf("%d events a second after the last work", n)
		}
	})
}

func TestWhatIsToldAtTheEndIsStillWritten(t *testing.T) {
	var written names
	running(t, written.create, func(log *Log, busy *atomic.Bool) {
		busy.Store(true)
		tellOnce(log, 1000)
	})
	if n := written.len(); n != 1000 {
		t.Errorf("%d events of 1,000", n)
	}
}

func TestEventThatIsNotTakenIsSentAgain(t *testing.T) {
	events := schema.GroupResource{Resource: "events"}
	exists := apierrors.NewAlreadyExists(events, "web-0")
	for _, c := range []struct {
		errs []error
		want int
	}{
		{[]error{errors.New("reset"), nil}, 2},
		{[]error{errors.New("reset"), exists}, 2}, // the first was taken, and the answer lost
		{[]error{errors.New("reset")}, unanswered},
		{[]error{apierrors.NewInternalError(errors.New("webhook down"))}, refused},
		{[]error{apierrors.NewForbidden(events, "web-0", errors.New("the namespace is being deleted"))}, 1},
	} {
		for _, once := range []bool{true, false} {
			var tries atomic.Int64
			running(t, func(*v1.Event) error {
				return c.errs[min(int(tries.Add(1)), len(c.errs))-1]
			}, func(log *Log, _ *atomic.Bool) {
				log.Tell(Event{About: about("web-0"), Reason: "Scheduled", Once: once})
				time.Sleep(5 * time.Minute)
			})
			if n := int(tries.Load()); n != c.want {
				t.Errorf("%v, once %t: sent %d times, want %d", c.errs, once, n, c.want)
			}
		}
	}
}

// Two components report the same about one pod: neither counts in the other's events.
func TestEventsAreInTheNameOfWhoReportsThem(t *testing.T) {
	var from sync.Map
	running(t, func(e *v1.Event) error { from.Store(e.Source.Component, e.Count); return nil }, func(log *Log, _ *atomic.Bool) {
		log.Add(about("p"), v1.EventTypeWarning, "FailedScheduling", "no node")
		log.Tell(Event{Component: "batch", About: about("p"), Type: v1.EventTypeWarning, Reason: "FailedScheduling", Message: "no node"})
	})
	for _, component := range []string{"default-scheduler", "batch"} {
		if count, _ := from.Load(component); count != int32(1) {
			t.Errorf("%s: an event that counts %v, want 1", component, count)
		}
	}
}
