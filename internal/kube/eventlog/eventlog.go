// Package eventlog writes Kubernetes events behind the work that they tell of:
// in order, at a bounded rate, never in its way. client-go's broadcaster drops
// what comes in faster than it writes, from the thousandth event on; an
// eviction of a whole zone must still leave its event on every pod.
package eventlog

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

const (
	perSecond = 100 // events written, so that they take little of the API server
	most      = 200_000
	attempts  = 3
	writers   = 4 // where there is no limit
)

// Log is a queue of events and the goroutines that write them.
type Log struct {
	// Busy, if set before Run, tells whether there is work that events must not be in the way of.
	// While there is none, they are written as fast as the API server takes them.
	Busy func() bool
	// Drain is how long Run goes on after the end of its context with what is queued.
	Drain time.Duration

	client     kubernetes.Interface
	source     string
	correlator *record.EventCorrelator
	limit      flowcontrol.RateLimiter

	mu      sync.Mutex
	waiting []*v1.Event
	dropped int
	more    chan struct{}
}

// New returns a log whose events say that they come from source.
func New(client kubernetes.Interface, source string) *Log {
	return &Log{
		client: client,
		source: source,
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{
			BurstSize: 25, QPS: 1. / 300, // per object, as client-go's own
		}),
		limit: flowcontrol.NewTokenBucketRateLimiter(perSecond, perSecond),
		more:  make(chan struct{}, 1),
	}
}

// Add queues an event about an object.
func (l *Log) Add(about v1.ObjectReference, eventType, reason, message string) {
	now := metav1.Now()
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event := &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s.%x", about.Name, now.UnixNano()),
			Namespace: namespace,
		},
		InvolvedObject:      about,
		Type:                eventType,
		Reason:              reason,
		Message:             message,
		Source:              v1.EventSource{Component: l.source},
		ReportingController: l.source,
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= most {
		l.dropped++
		return
	}
	l.waiting = append(l.waiting, event)
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// Run writes events until the context ends.
func (l *Log) Run(ctx context.Context) {
	write, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		if l.Drain == 0 {
			stop()
			return
		}
		time.AfterFunc(l.Drain, stop)
	})
	n := 1
	if l.Busy != nil {
		n = writers
	}
	lanes := make([]chan *v1.Event, n)
	var running sync.WaitGroup
	for i := range lanes {
		lanes[i] = make(chan *v1.Event)
		running.Go(func() {
			for event := range lanes[i] {
				l.write(write, ctx, event)
			}
		})
	}
	l.hand(write, ctx, lanes)
	for _, lane := range lanes {
		close(lane)
	}
	running.Wait()
}

// hand gives every event to a writer, those of one object to one and the same, so that they are
// written in their order.
func (l *Log) hand(write, ctx context.Context, lanes []chan *v1.Event) {
	for {
		for event := l.next(); event != nil; event = l.next() {
			h := fnv.New32a()
			h.Write([]byte(event.InvolvedObject.UID))
			select {
			case lanes[h.Sum32()%uint32(len(lanes))] <- event:
			case <-write.Done():
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-l.more:
		}
	}
}

func (l *Log) next() *v1.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return nil
	}
	event := l.waiting[0]
	l.waiting[0] = nil
	l.waiting = l.waiting[1:]
	return event
}

// turn waits until the next event may be written. One that comes after the end of ctx need not
// wait.
func (l *Log) turn(ctx context.Context) {
	for l.Busy == nil || l.Busy() {
		if l.Busy == nil {
			_ = l.limit.Wait(ctx)
			return
		}
		if l.limit.TryAccept() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second / perSecond):
		}
	}
}

func (l *Log) write(ctx, until context.Context, event *v1.Event) {
	result, err := l.correlator.EventCorrelate(event)
	if err != nil || result.Skip {
		return
	}
	l.turn(until)
	for attempt := range attempts {
		if ctx.Err() != nil {
			return
		}
		written, err := l.send(ctx, result)
		if err == nil {
			l.correlator.UpdateState(written)
			return
		}
		klog.FromContext(ctx).V(2).Info("Event not written", "reason", event.Reason, "about", klog.KRef(event.InvolvedObject.Namespace, event.InvolvedObject.Name), "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(attempt+1) * time.Second):
		}
	}
}

func (l *Log) send(ctx context.Context, result *record.EventCorrelateResult) (*v1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	events := l.client.CoreV1().Events(result.Event.Namespace)
	if result.Event.Count > 1 {
		written, err := events.Patch(ctx, result.Event.Name, types.StrategicMergePatchType, result.Patch, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return written, err
		} // it has expired: it is written anew
	}
	result.Event.ResourceVersion = ""
	return events.Create(ctx, result.Event, metav1.CreateOptions{})
}
