// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
)

func about(pod string) v1.ObjectReference {
	return v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: pod, UID: "u-1"}
}

// TestNoEventIsDroppedForBeingOneOfMany verifies that all events for the pods of a zone are
// written, at a limited rate, although they are added at the same time. client-go's broadcaster
// would drop all but a thousand.
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

// TestEventIsWrittenInSpiteOfAFailure verifies that an event is written after failed attempts, and
// that it has the UID of its object, so that kubectl describe finds it.
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

// TestRepeatedEventIsCounted verifies that a repeated event increments the count of the existing
// event.
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

// running runs a log that writes events with create, calls test, ends the log, and returns the time
// until Run returned.
func running(t *testing.T, create func(*v1.Event) error, test func(log *Log, busy *atomic.Bool)) (end time.Duration) {
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
		stopped := time.Now()
		<-ended
		end = time.Since(stopped)
	})
	return end
}

func tellOnce(log *Log, n int) {
	for i := range n {
		log.Record(Event{Regarding: about(fmt.Sprint("web-", i)), Type: v1.EventTypeNormal, Reason: "Scheduled", Message: "Successfully assigned", Once: true})
	}
}

// names holds the names of the written events.
type names struct{ sync.Map }

func (n *names) create(e *v1.Event) error { n.Store(e.Name, true); return nil }

func (n *names) len() (count int) {
	n.Range(func(any, any) bool { count++; return true })
	return count
}

// TestTheNewestEventReplacesOneThatWaits verifies that of the waiting events about an object with
// the same reason, only the newest is written, and that the replaced ones do not fill the queue.
// After it is written, the next one is written as well.
func TestTheNewestEventReplacesOneThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var written []string
		log := New(fake.NewClientset(), "default-scheduler")
		log.Create = func(_ context.Context, e *v1.Event) error {
			mu.Lock()
			defer mu.Unlock()
			written = append(written, e.Message)
			return nil
		}
		record := func(pod, reason, message string) {
			regarding := about(pod)
			regarding.UID = types.UID(pod)
			log.Record(Event{Regarding: regarding, Reason: reason, Message: message, Newest: true})
		}
		for i := range 3 {
			record("a", "FailedScheduling", fmt.Sprintf("a fails %d", i))
			record("b", "FailedScheduling", fmt.Sprintf("b fails %d", i))
			record("a", "Preempted", "a is preempted")
		}
		if log.waits != 3 {
			t.Errorf("%d events wait, want 3", log.waits)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); log.Run(ctx) }()
		time.Sleep(time.Minute)
		record("a", "FailedScheduling", "a fails again")
		time.Sleep(time.Minute)
		cancel()
		<-ended
		slices.Sort(written)
		if want := []string{"a fails 2", "a fails again", "a is preempted", "b fails 2"}; !slices.Equal(written, want) || log.waits+log.bytes+len(log.newest) != 0 {
			t.Errorf("written %q, want %q; %d events with %d bytes wait", written, want, log.waits, log.bytes)
		}
	})
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
		{[]error{errors.New("reset"), exists}, 2}, // the first request was carried out, but its response was lost
		{[]error{errors.New("reset")}, unanswered},
		{[]error{apierrors.NewInternalError(errors.New("webhook down"))}, refused},
		{[]error{apierrors.NewTooManyRequests("priority and fairness", 1)}, refused},
		{[]error{apierrors.NewForbidden(events, "web-0", errors.New("the namespace is being deleted"))}, 1},
	} {
		for _, once := range []bool{true, false} {
			var tries atomic.Int64
			running(t, func(*v1.Event) error {
				return c.errs[min(int(tries.Add(1)), len(c.errs))-1]
			}, func(log *Log, _ *atomic.Bool) {
				log.Record(Event{Regarding: about("web-0"), Reason: "Scheduled", Once: once})
				time.Sleep(5 * time.Minute)
			})
			if n := int(tries.Load()); n != c.want {
				t.Errorf("%v, once %t: sent %d times, want %d", c.errs, once, n, c.want)
			}
		}
	}
}

// TestEventsAreInTheNameOfWhoReportsThem verifies that equal events of two components are not
// correlated with each other.
func TestEventsAreInTheNameOfWhoReportsThem(t *testing.T) {
	var from sync.Map
	running(t, func(e *v1.Event) error { from.Store(e.Source.Component, e.Count); return nil }, func(log *Log, _ *atomic.Bool) {
		log.Add(about("p"), v1.EventTypeWarning, "FailedScheduling", "no node")
		log.Record(Event{Component: "batch", Regarding: about("p"), Type: v1.EventTypeWarning, Reason: "FailedScheduling", Message: "no node"})
	})
	for _, component := range []string{"default-scheduler", "batch"} {
		if count, _ := from.Load(component); count != int32(1) {
			t.Errorf("%s: an event that counts %v, want 1", component, count)
		}
	}
}

func TestFullQueueDropsEvents(t *testing.T) {
	var buf bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&buf)
	t.Cleanup(func() { klog.LogToStderr(true); klog.SetOutput(os.Stderr) })
	log := New(fake.NewClientset(), "default-scheduler")
	tellOnce(log, most+10)
	if n := len(log.waiting); n != most || log.dropped != 10 {
		t.Errorf("%d events wait and %d are dropped, want %d and 10", n, log.dropped, most)
	}
	klog.Flush()
	if !strings.Contains(buf.String(), "dropped") || strings.Count(buf.String(), "\n") != 1 {
		t.Errorf("said once: %q", buf.String())
	}
}

// TestLongEventsFillTheQueue verifies that the total size of the queued events, including the
// events in lanes, is bounded, and decreases when events are written.
func TestLongEventsFillTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written names
		answers := make(chan struct{})
		log := New(fake.NewClientset(), "default-scheduler")
		log.Create = func(_ context.Context, e *v1.Event) error { <-answers; return written.create(e) }
		const size, more = 1 << 20, 50
		half := strings.Repeat("m", size/2)
		tell := func(n int) {
			for i := range n {
				log.Record(Event{
					Regarding: v1.ObjectReference{UID: types.UID(fmt.Sprint(i))}, Message: half, Once: i%2 == 0,
					Annotations: map[string]string{"a": half},
				})
			}
		}
		const fit = mostBytes / (size + 1<<10)
		tell(fit + more)
		if most, least := more, more-2; log.dropped > most || log.dropped < least {
			t.Errorf("%d of %d are dropped, want %d to %d", log.dropped, fit+more, least, most)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); log.Run(ctx) }()
		synctest.Wait() // each writer is writing an event, and the lanes hold many events
		before := log.dropped
		tell(2 * fit)
		if dropped := log.dropped - before; dropped < fit {
			t.Errorf("beside those in lanes, %d of %d are dropped", dropped, 2*fit)
		}
		close(answers)
		time.Sleep(time.Hour) // in virtual time
		synctest.Wait()
		if log.waits != 0 || log.bytes != 0 {
			t.Errorf("%d of %d bytes wait", log.waits, log.bytes)
		}
		before = log.dropped
		tell(fit)
		if log.dropped != before {
			t.Errorf("%d are dropped, though there was room", log.dropped-before)
		}
		cancel()
		<-ended
	})
}

// TestEndIsNotLaterThanDrain verifies that Run ends after Drain, plus the duration of one write,
// even if writes are slow and ignore their contexts.
func TestEndIsNotLaterThanDrain(t *testing.T) {
	const each = 100 * time.Millisecond
	var written names
	took := running(t, func(e *v1.Event) error { time.Sleep(each); return written.create(e) }, func(log *Log, _ *atomic.Bool) {
		tellOnce(log, 5000)
	})
	if took > 2*time.Second+each || written.len() < 19*Writers {
		t.Errorf("ended after %v, with %d events written", took, written.len())
	}
}

// TestEndDoesNotWaitForAnAnswer verifies that Run waits neither for a response nor for the next
// attempt after the end of its context.
func TestEndDoesNotWaitForAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, hangs := range []bool{true, false} {
			log := New(fake.NewClientset(), "node-controller")
			log.Create = func(ctx context.Context, _ *v1.Event) error {
				if hangs {
					<-ctx.Done()
				}
				return errors.New("no answer")
			}
			log.Add(about("p"), v1.EventTypeNormal, "NodeNotReady", "")
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			began := time.Now()
			log.Run(ctx)
			if took := time.Since(began); took != 5*time.Second {
				t.Errorf("hangs %t: ended after %v, want 5s", hangs, took)
			}
		}
	})
}

// TestManyAreWrittenAtOnce verifies that many events are written concurrently if Busy returns
// false, so that they do not take long even if the API server is slow.
func TestManyAreWrittenAtOnce(t *testing.T) {
	var written names
	running(t, func(e *v1.Event) error { time.Sleep(100 * time.Millisecond); return written.create(e) }, func(log *Log, _ *atomic.Bool) {
		tellOnce(log, 10*Writers)
		time.Sleep(1100 * time.Millisecond)
		if n := written.len(); n != 10*Writers {
			t.Errorf("%d of %d events written in a second, a tenth each", n, 10*Writers)
		}
	})
}

// TestEventsAboutOneObjectKeepTheirOrder verifies the order even if the first event takes long.
func TestEventsAboutOneObjectKeepTheirOrder(t *testing.T) {
	var mu sync.Mutex
	var order []string
	running(t, func(e *v1.Event) error {
		if e.Reason == "r0" {
			time.Sleep(time.Second)
		}
		mu.Lock()
		defer mu.Unlock()
		order = append(order, e.Reason)
		return nil
	}, func(log *Log, _ *atomic.Bool) {
		for i := range 8 {
			log.Add(about("p"), v1.EventTypeNormal, fmt.Sprint("r", i), "")
		}
		time.Sleep(5 * time.Second)
	})
	if got := fmt.Sprint(order); got != "[r0 r1 r2 r3 r4 r5 r6 r7]" {
		t.Errorf("written in the order %s", got)
	}
}

// TestOnlyEventsThatAreToldOnceEscapeTheLimitPerObject verifies that of thirty events about one
// pod, all are written if Once is set, and otherwise 25.
func TestOnlyEventsThatAreToldOnceEscapeTheLimitPerObject(t *testing.T) {
	for _, c := range []struct {
		once bool
		want int
	}{{true, 30}, {false, 25}} {
		var written names
		running(t, written.create, func(log *Log, _ *atomic.Bool) {
			for i := range 30 {
				log.Record(Event{Regarding: about("p"), Reason: fmt.Sprint("r", i), Once: c.once})
				time.Sleep(time.Millisecond) // so that their names, which contain the time, differ
			}
			time.Sleep(time.Second)
		})
		if n := written.len(); n != c.want {
			t.Errorf("once %t: %d events of 30, want %d", c.once, n, c.want)
		}
	}
}

// TestRepetitionOfAnEventThatExpiredIsWrittenAnew verifies that if the existing event has expired,
// or its creation was refused, a repetition is written as a new event with the total count.
func TestRepetitionOfAnEventThatExpiredIsWrittenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var refuse atomic.Bool
		refuse.Store(true)
		client.PrependReactor("create", "events", func(ktesting.Action) (bool, runtime.Object, error) {
			return refuse.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil)
		})
		log := New(client, "node-controller")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); log.Run(ctx) }()
		counts := func() (all []int32) {
			list, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list.Items {
				all = append(all, e.Count)
			}
			return all
		}
		add := func() {
			log.Add(about("p"), v1.EventTypeNormal, "NodeNotReady", "")
			time.Sleep(time.Second)
		}
		add()
		refuse.Store(false)
		add()
		add()
		if got := fmt.Sprint(counts()); got != "[3]" {
			t.Errorf("refused, written, repeated: events that count %s, want 3", got)
		}
		if err := client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("events"), "default", first(t, client).Name); err != nil {
			t.Fatal(err)
		}
		add()
		if got := fmt.Sprint(counts()); got != "[4]" {
			t.Errorf("after the event expired: events that count %s, want 4", got)
		}
		cancel()
		<-ended
	})
}

func first(t *testing.T, client *fake.Clientset) *v1.Event {
	list, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		t.Fatal(err, "no event")
	}
	return &list.Items[0]
}

// TestTriesAreApart verifies that the pauses between attempts grow, so that the writers do not keep
// sending requests to an API server that is down.
func TestTriesAreApart(t *testing.T) {
	var at []time.Time
	running(t, func(*v1.Event) error { at = append(at, time.Now()); return errors.New("connection refused") }, func(log *Log, _ *atomic.Bool) {
		tellOnce(log, 1)
		time.Sleep(5 * time.Minute)
	})
	for i := 1; i < len(at); i++ {
		if got, want := at[i].Sub(at[i-1]), min(time.Duration(i)*time.Second, 10*time.Second); got != want {
			t.Errorf("try %d came after %v, want %v", i+1, got, want)
		}
	}
}

// TestEventWithoutAnAnswerHoldsUpNoOther verifies that a hanging request does not delay events
// about other objects, in a log without Busy.
func TestEventWithoutAnAnswerHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = 5 * perSecond
		var written names
		log := New(fake.NewClientset(), "taint-eviction-controller")
		log.Create = func(ctx context.Context, e *v1.Event) error {
			if e.InvolvedObject.Name == "hangs" {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(50 * time.Millisecond)
			return written.create(e)
		}
		of := func(pod string) v1.ObjectReference {
			regarding := about(pod)
			regarding.UID = types.UID(pod)
			return regarding
		}
		log.Add(of("hangs"), v1.EventTypeNormal, "TaintManagerEviction", "")
		for i := range others {
			log.Add(of(fmt.Sprint("p-", i)), v1.EventTypeNormal, "TaintManagerEviction", "")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		log.Run(ctx)
		if n := written.len(); n < others*(Writers-2)/Writers {
			t.Errorf("%d of %d events written within 9 s, while one is not answered", n, others)
		}
	})
}

// TestLongLanesDoNotHoldUpWhatIsToldOnce verifies that events with and without Once share the
// limited rate.
func TestLongLanesDoNotHoldUpWhatIsToldOnce(t *testing.T) {
	var written sync.Map
	running(t, func(e *v1.Event) error { written.Store(e.Reason+e.Name, true); return nil }, func(log *Log, busy *atomic.Bool) {
		busy.Store(true)
		for i := range 5000 {
			regarding := about(fmt.Sprint("p-", i))
			regarding.UID = types.UID(regarding.Name)
			log.Add(regarding, v1.EventTypeWarning, "FailedScheduling", "")
		}
		tellOnce(log, 1000)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		var once, other int
		written.Range(func(key, _ any) bool {
			if strings.HasPrefix(key.(string), "Scheduled") {
				once++
			} else {
				other++
			}
			return true
		})
		if once < 20 || other < 20 {
			t.Errorf("within 10 busy seconds %d events told once and %d others were written", once, other)
		}
	})
}

// TestRequestThatHangsIsSentAgain verifies that a hanging request is repeated after ten seconds.
func TestRequestThatHangsIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := New(fake.NewClientset(), "node-controller")
		tries := 0
		log.Create = func(ctx context.Context, _ *v1.Event) error {
			if tries++; tries == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		log.Add(about("p"), v1.EventTypeNormal, "NodeNotReady", "")
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		log.Run(ctx)
		if tries != 2 {
			t.Errorf("sent %d times, want 2", tries)
		}
	})
}

// TestEventSaysWhatWasToldAndWhen verifies that an event has the time at which it was recorded, not
// written, and that written events are not retained in memory.
func TestEventSaysWhatWasToldAndWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got *v1.Event
		log := New(fake.NewClientset(), "kubelet")
		log.Host = "node-1"
		log.Create = func(_ context.Context, e *v1.Event) error { got = e; return nil }
		told := metav1.Now()
		log.Record(Event{Regarding: about("p"), Type: v1.EventTypeWarning, Reason: "BackOff", Message: "text", Annotations: map[string]string{"a": "b"}, Once: true})
		queue := log.waiting
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		log.Run(ctx)
		if got == nil || !got.FirstTimestamp.Equal(&told) || !got.LastTimestamp.Equal(&told) || got.Count != 1 ||
			got.Type != v1.EventTypeWarning || got.Message != "text" || got.Annotations["a"] != "b" ||
			got.Source.Host != "node-1" || got.ReportingInstance != "node-1" || got.ReportingController != "kubelet" {
			t.Errorf("written: %+v", got)
		}
		if queue[0] != nil {
			t.Error("the queue holds an event that was written")
		}
	})
}

// TestSlowAnswersAreWaitedForTogether verifies that a dozen slow events take no longer than one,
// because they are written concurrently.
func TestSlowAnswersAreWaitedForTogether(t *testing.T) {
	var written names
	running(t, func(e *v1.Event) error { time.Sleep(time.Second); return written.create(e) }, func(log *Log, _ *atomic.Bool) {
		tellOnce(log, 12)
		time.Sleep(1500 * time.Millisecond)
		if n := written.len(); n != 12 {
			t.Errorf("%d of 12 events after a second and a half, one each", n)
		}
	})
}

// TestNothingIsBegunAfterTheDrain verifies that no write begins after Drain, however many events
// remain in the lanes.
func TestNothingIsBegunAfterTheDrain(t *testing.T) {
	var late atomic.Int64
	var end atomic.Pointer[time.Time]
	running(t, func(*v1.Event) error {
		if at := end.Load(); at != nil && time.Since(*at) > 2*time.Second {
			late.Add(1)
		}
		time.Sleep(300 * time.Millisecond)
		return nil
	}, func(log *Log, _ *atomic.Bool) {
		for i := range 1000 {
			regarding := about(fmt.Sprint("p-", i))
			regarding.UID = types.UID(regarding.Name)
			log.Add(regarding, v1.EventTypeWarning, "FailedScheduling", "")
		}
		time.Sleep(time.Second)
		now := time.Now()
		end.Store(&now)
	})
	if n := late.Load(); n > 0 {
		t.Errorf("%d events were begun after the drain", n)
	}
}
