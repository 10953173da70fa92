package live

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

const (
	// announcers is how many events are written at once. Fewer would cost more: who waits alone for
	// an answer is put to sleep and woken.
	announcers = 16
	// whileBusy is how many events a second are written while there are bindings to send: these go
	// first.
	whileBusy = 100
	// mostAnnounced bounds the events that wait; more are dropped.
	mostAnnounced  = 200_000
	announceTries  = 3
	announceWithin = 10 * time.Second
)

// announcement is a pod that was bound.
type announcement struct {
	profile string
	about   v1.ObjectReference
	node    string
	at      time.Time
}

// announcing writes the event Scheduled of every pod that was bound. It is no eventlog.Log, which
// has a memory of what it has said: this is said once of a pod, and of every pod.
type announcing struct {
	write func(context.Context, *v1.Event) error
	busy  func() bool // there are bindings to send

	mu      sync.Mutex
	waiting []announcement
	more    chan struct{} // has one element when some wait
}

func (a *announcing) add(n announcement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) >= mostAnnounced {
		return
	}
	a.waiting = append(a.waiting, n)
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// take returns all that wait.
func (a *announcing) take() []announcement {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.waiting
	a.waiting = nil
	return all
}

// run writes events until the context ends, and then for some time more what waits.
func (a *announcing) run(ctx context.Context) {
	write, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(drain, stop) })()
	next := make(chan announcement)
	var running sync.WaitGroup
	for range announcers {
		running.Go(func() {
			for n := range next {
				a.announce(write, n)
			}
		})
	}
	a.hand(ctx, write, next)
	close(next)
	running.Wait()
}

// hand gives the events to the writers, each in its turn.
func (a *announcing) hand(ctx, write context.Context, next chan<- announcement) {
	limit := flowcontrol.NewTokenBucketRateLimiter(whileBusy, whileBusy)
	for {
		for _, n := range a.take() {
			for ctx.Err() == nil && a.busy() && !limit.TryAccept() {
				select {
				case <-ctx.Done():
				case <-time.After(time.Second / whileBusy):
				}
			}
			select {
			case next <- n:
			case <-write.Done():
				return
			}
		}
		select {
		case <-a.more:
		case <-ctx.Done():
			if len(a.more) == 0 {
				return
			}
		}
	}
}

// announce writes one event.
func (a *announcing) announce(ctx context.Context, n announcement) {
	at := metav1.NewTime(n.at)
	event := &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: n.about.Namespace, Name: fmt.Sprintf("%s.%x", n.about.Name, n.at.UnixNano())},
		InvolvedObject: n.about,
		Type:           v1.EventTypeNormal, Reason: "Scheduled",
		Message: fmt.Sprintf("Successfully assigned %s/%s to %s", n.about.Namespace, n.about.Name, n.node),
		Source:  v1.EventSource{Component: n.profile}, ReportingController: n.profile,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
	for try := 1; ctx.Err() == nil; try++ {
		once, cancel := context.WithTimeout(ctx, announceWithin)
		err := a.write(once, event)
		cancel()
		if err == nil || apierrors.IsAlreadyExists(err) { // the answer to an earlier try was lost
			return
		}
		klog.FromContext(ctx).V(2).Info("Event not written", "reason", event.Reason, "about", klog.KRef(n.about.Namespace, n.about.Name), "err", err)
		if try == announceTries || answered(err) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(try) * time.Second):
		}
	}
}
