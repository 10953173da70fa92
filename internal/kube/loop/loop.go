package loop

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Loop is a core with what moves it. E are the core's events, A its actions.
type Loop[E, A any] struct {
	Name string // for the log
	// Step is the core's, and Wake when it wants Tick at the latest, by a clock
	// that nobody sets; all is called by the goroutine of Run, and so is Tell,
	// each second.
	Step func(now time.Time, event E) []A
	Wake func(now time.Time) time.Time
	Tick E
	Tell func()
	// Do carries an action out at once if it is no request, and returns nil;
	// else what carries it out and returns the answer, on a goroutine of its own.
	Do func(ctx context.Context, action A) (request func(context.Context) E)

	seen    chan E
	answers chan E
	now     func() time.Time
}

// New returns a loop without anything in it yet.
func New[E, A any](name string) *Loop[E, A] {
	return &Loop[E, A]{Name: name, seen: make(chan E, 1024), answers: make(chan E, 64), now: clock()}
}

// clock returns a clock that begins with the time of day and that nobody sets.
// Its times have no monotonic reading, so that a core that is told them again
// sees the same.
func clock() func() time.Time {
	begun := time.Now()
	return func() time.Time { return begun.Round(0).UTC().Add(time.Since(begun)) }
}

// See hands the core an event, as soon as it has taken in those before. It may
// be called from any goroutine, also before Run.
func (l *Loop[E, A]) See(ctx context.Context, event E) {
	select {
	case l.seen <- event:
	case <-ctx.Done():
	}
}

// Run runs the core, and what feeds it, until the context ends; it returns when
// no request is under way any more. A loop runs once.
func (l *Loop[E, A]) Run(ctx context.Context, feeds ...func(context.Context)) {
	log := klog.FromContext(ctx)
	log.Info("Starting", "controller", l.Name)
	defer log.Info("Stopped", "controller", l.Name)
	var others sync.WaitGroup
	defer others.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, feed := range feeds {
		others.Go(func() { feed(ctx) })
	}
	timer, second := time.NewTimer(0), time.NewTicker(time.Second)
	defer timer.Stop()
	defer second.Stop()
	for {
		event, ok := l.next(ctx, timer, second)
		if !ok {
			return
		}
		now := l.now()
		for _, action := range l.Step(now, event) {
			if request := l.Do(ctx, action); request != nil {
				others.Go(func() { l.answer(ctx, request) })
			}
		}
		timer.Reset(max(0, l.Wake(now).Sub(l.now())))
	}
}

// next waits for an event. Answers come first: they free what is in flight.
func (l *Loop[E, A]) next(ctx context.Context, timer *time.Timer, second *time.Ticker) (event E, ok bool) {
	for ctx.Err() == nil {
		select {
		case event = <-l.answers:
			return event, true
		default:
		}
		select {
		case <-ctx.Done():
		case event = <-l.answers:
			return event, true
		case event = <-l.seen:
			return event, true
		case <-timer.C:
			return l.Tick, true
		case <-second.C:
			l.Tell()
		}
	}
	return event, false
}

func (l *Loop[E, A]) answer(ctx context.Context, request func(context.Context) E) {
	select {
	case l.answers <- request(ctx):
	case <-ctx.Done():
	}
}
