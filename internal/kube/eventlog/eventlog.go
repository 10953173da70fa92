// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package eventlog writes Kubernetes events asynchronously and at a bounded rate, so that they
// never delay the work that they report. client-go's broadcaster is not used, because it drops
// events when a thousand are queued; but when a whole zone is evicted, there must be an event for
// every pod.
package eventlog

import (
	"context"
	"hash/fnv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/kube/loglimit"
	"github.com/berth-k8s/berth/internal/pacing"
)

// These are the bounds of a log, in total and per event. It is better to write an event late than
// to drop it, and better to drop it than to delay the reported work.
const (
	perSecond = 100              // limit of written events per second, to bound the API server's load
	most      = 200_000          // limit of queued events; further events are dropped
	within    = 10 * time.Second // bounds one request
	// mostBytes bounds the size of the queued events. It suffices for the maximum number of events
	// if their messages have some 300 bytes.
	mostBytes = 128 << 20

	// Writers is the number of events written concurrently, so that a slow request does not delay
	// the other events. When the rate is not limited, fewer writers would cost more CPU, because a
	// single writer is put to sleep and woken for each response.
	Writers = 16
	// unanswered is the number of attempts for an event if the API server does not respond, and
	// refused the number of attempts if it responds with a possibly temporary error.
	unanswered   = 12
	refused      = 3
	longestPause = 10 * time.Second
)

// Event is one event about one object.
type Event struct {
	Regarding             v1.ObjectReference
	Type, Reason, Message string
	// Component is the reporting component; if empty, it is the component of the log.
	Component   string
	Annotations map[string]string
	// Once marks an event that is never repeated for the object, so that it is written without
	// correlation. Other events are correlated like in client-go: a repeated event increments the
	// count of the existing event, and if an object has too many events, further events are dropped
	// for a while.
	Once bool
	// Newest marks an event that replaces a waiting event with the same object and reason.
	// Otherwise the events of many waiting pods would load the API server long after they are
	// obsolete.
	Newest bool
}

// Log is a queue of events and the goroutines that write them. Events about one object are written
// in the order of addition, except for events with Once set.
//
// Each of the Writers has a lane. An event is in waiting until handOut passes it on. An event with
// Once set goes to any free writer; any other event goes to the lane of its object, so that a
// single writer writes all events about that object.
type Log struct {
	// Busy, if set before Run, reports whether there is work with priority over events. While it
	// returns false, events are written as fast as the API server accepts them. Without Busy, the
	// rate is always limited.
	Busy func() bool
	// Drain is the maximum time for which Run continues to write queued events after the end of its
	// context.
	Drain time.Duration
	// Host is the reporting node, if any.
	Host string
	// Create, if set before Run, creates events instead of the client.
	Create func(context.Context, *v1.Event) error

	client     kubernetes.Interface
	component  string
	correlator *record.EventCorrelator // client-go's correlator; not used for events with Once set
	limit      flowcontrol.RateLimiter // shared by all writers

	mu      sync.Mutex
	waiting []*queued
	newest  map[subject]*queued // waiting events with Newest set
	more    chan struct{}       // has an element if waiting may not be empty
	waits   int                 // number of waiting events, including events in lanes
	bytes   int                 // total size of these events
	dropped int                 // number of events dropped because the queue was full

	full loglimit.Line // limits the log lines about dropped events
}

// queued is an event with the time at which it was recorded. It may be written much later.
type queued struct {
	Event
	at metav1.Time
}

// subject identifies events of which only the newest is of interest.
type subject struct {
	uid    types.UID
	reason string
}

func (e *queued) subject() subject { return subject{e.Regarding.UID, e.Reason} }

// sizeOf returns the event's size in memory.
func (e *queued) sizeOf() int {
	const own = 216
	sum := own + len(e.Component) + len(e.Type) + len(e.Reason) + len(e.Message)
	a := &e.Regarding
	sum += len(a.Kind) + len(a.Namespace) + len(a.Name) + len(a.UID) + len(a.APIVersion) + len(a.ResourceVersion) + len(a.FieldPath)
	for key, value := range e.Annotations {
		sum += len(key) + len(value)
	}
	return sum
}

// lane is a queue of events about some objects, written in order by one writer.
type lane struct {
	events []*queued     // guarded by Log.mu
	more   chan struct{} // has an element if events may not be empty; closed after the last event
}

// New returns a log for the events of a component. Events added before Run are queued.
func New(client kubernetes.Interface, component string) *Log {
	return &Log{
		client:    client,
		component: component,
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{
			BurstSize: 25, QPS: 1. / 300, // per object, like client-go's defaults
		}),
		limit: flowcontrol.NewTokenBucketRateLimiter(perSecond, perSecond),
		more:  make(chan struct{}, 1), newest: map[subject]*queued{},
	}
}

// Add queues an event about an object.
func (l *Log) Add(regarding v1.ObjectReference, eventType, reason, message string) {
	l.Record(Event{Regarding: regarding, Type: eventType, Reason: reason, Message: message})
}

// Record queues an event. It never blocks: if the queue is full, the event is dropped, counted and
// logged.
func (l *Log) Record(e Event) {
	one := &queued{e, metav1.Now()}
	size := one.sizeOf()
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.newest[one.subject()]; e.Newest && before != nil {
		l.bytes += size - before.sizeOf()
		*before = *one
		return
	}
	if l.waits >= most || l.bytes+size > mostBytes {
		l.dropped++
		if l.full.Due() {
			klog.Background().Info("Too many events wait to be written, further ones are dropped", "waiting", l.waits,
				"droppedSoFar", l.dropped,
				"reason", e.Reason, "about", klog.KRef(e.Regarding.Namespace, e.Regarding.Name))
		}
		return
	}

	if e.Newest {
		l.newest[one.subject()] = one
	}
	l.waiting = append(l.waiting, one)
	l.waits++
	l.bytes += size
	pacing.Signal(l.more)
}

// Run writes events until the context ends. It then writes the queued events at full speed, for
// Drain at most. A Log can be run only once.
func (l *Log) Run(ctx context.Context) {
	write, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(l.Drain, stop) })()
	shared := make(chan *queued)
	lanes := make([]*lane, Writers)
	var running sync.WaitGroup
	for i := range lanes {
		lanes[i] = &lane{more: make(chan struct{}, 1)}
		running.Go(func() { l.writeLane(write, ctx, lanes[i], shared) })
	}
	l.handOut(write, ctx, lanes, shared)
	for _, lane := range lanes {
		close(lane.more)
	}
	close(shared)
	running.Wait()
}

// writeLane writes the events of a lane, and shared events, until both are closed and empty. A
// shared event, if any, is written before each event of the lane, so that a long lane does not
// starve the shared events.
func (l *Log) writeLane(write, ctx context.Context, lane *lane, shared <-chan *queued) {
	more := lane.more
	// writeOnce does not call awaitTurn, because handOut has done so.
	writeOnce := func(e *queued, open bool) {
		if !open {
			shared = nil
			return
		}
		event := l.toEvent(e)
		l.retrySend(write, event, func(ctx context.Context) error { return l.createEvent(ctx, event) })
	}

	for {
		switch own := l.pop(&lane.events); {
		case own != nil:
			select {
			case e, open := <-shared:
				writeOnce(e, open)
			default:
			}
			if l.awaitTurn(ctx); write.Err() == nil {
				l.writeCorrelated(write, own)
			}
		case more == nil && shared == nil:
			return
		default:
			select {
			case _, open := <-more:
				if !open {
					more = nil
				}
			case e, open := <-shared:
				writeOnce(e, open)
			}
		}
	}
}

// handOut passes every event to a writer. Events about one object go to the same lane, so that they
// are written in order. An event with Once set goes to any free writer after awaitTurn.
func (l *Log) handOut(write, ctx context.Context, lanes []*lane, shared chan<- *queued) {
	for {
		for e := l.pop(&l.waiting); e != nil; e = l.pop(&l.waiting) {
			if !e.Once {
				l.putInLane(lanes, e)
				continue
			}
			l.awaitTurn(ctx)
			select {
			case shared <- e:
			case <-write.Done():
				return
			}
		}

		select {
		case <-l.more:
		case <-ctx.Done():
			if len(l.more) == 0 {
				return
			}
		}
	}
}

// putInLane adds an event to its object's lane.
func (l *Log) putInLane(lanes []*lane, e *queued) {
	h := fnv.New32a()
	h.Write([]byte(e.Regarding.UID))
	to := lanes[h.Sum32()%uint32(len(lanes))]
	l.mu.Lock()
	to.events = append(to.events, e)
	l.mu.Unlock()
	pacing.Signal(to.more)
}

// pop takes the first event of a queue, or returns nil. The event no longer counts as waiting,
// unless the caller moves it to a lane.
func (l *Log) pop(queue *[]*queued) *queued {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(*queue) == 0 {
		return nil
	}
	e := (*queue)[0]
	(*queue)[0] = nil
	*queue = (*queue)[1:]
	if e.Once || queue != &l.waiting {
		l.waits-- // events in lanes still count as waiting
		l.bytes -= e.sizeOf()
		if e.Newest {
			delete(l.newest, e.subject())
		}
	}
	return e
}

// awaitTurn waits until the next event may be written. It limits the rate to perSecond, unless Busy
// returns false or ctx has ended.
func (l *Log) awaitTurn(ctx context.Context) {
	if l.Busy == nil {
		_ = l.limit.Wait(ctx)
		return
	}
	for ctx.Err() == nil && l.Busy() && !l.limit.TryAccept() {
		pacing.Sleep(ctx, time.Second/perSecond)
	}
}
