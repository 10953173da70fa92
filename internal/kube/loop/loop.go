package loop

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Loop is a core and what drives it. E are the core's events, A its actions. Step, Wake, Tell and
// Do are called by the owner: the goroutine of Run.
type Loop[E, A any] struct {
	Name string // for the log
	// Step is the core's. Wake is when it wants Tick at the latest; it is called when everything in
	// the inbox has been taken in.
	Step func(now time.Time, event E) []A
	Wake func(now time.Time) time.Time
	Tick E
	// Tell, if set, is called each second.
	Tell func()
	// Do carries an action out, or has others do so, and returns nil; or it returns the request
	// that carries it out, which runs on a goroutine of its own and returns the answer. Its context
	// ends with that of Run.
	Do func(ctx context.Context, action A) (request func(context.Context) E)

	inbox  inbox[E]
	spare  []message[E]    // the array that the inbox gets next; cleared
	begun  time.Time       // of New; has both clocks
	life   context.Context // of Run, set before any goroutine begins
	beside sync.WaitGroup  // feeds and requests
}

// New returns a loop without anything in it yet.
func New[E, A any](name string) *Loop[E, A] {
	return &Loop[E, A]{
		Name: name, inbox: inbox[E]{more: make(chan struct{}, 1)}, begun: time.Now(), life: context.Background(),
	}
}

// Now is the clock of the core. It begins with the wall clock's time, and setting that does not
// change it. Its times have no monotonic reading, so that a replay gives a core the same times.
func (l *Loop[E, A]) Now() time.Time { return l.begun.Round(0).UTC().Add(time.Since(l.begun)) }

// See leaves an event for the core, which takes it in after those before. It never blocks, and may
// be called from any goroutine, also before Run.
func (l *Loop[E, A]) See(event E) { l.inbox.put(message[E]{event: event}) }

// Show is See for an object that a watch has shown, and its size. While too much waits for the
// owner it blocks, until the loop ends.
func (l *Loop[E, A]) Show(event E, size int) {
	l.inbox.waitForRoom(l.life.Done())
	l.inbox.put(message[E]{event: event, size: size})
}

// Look makes the owner call what between two steps. It does not wait for that.
func (l *Loop[E, A]) Look(what func()) { l.inbox.put(message[E]{look: what}) }

// Run runs the core, and what feeds it, until the context ends; it returns when no feed and no
// request is under way. A loop runs once. If the core panics, Run does not wait for them: the
// process has to end.
func (l *Loop[E, A]) Run(ctx context.Context, feeds ...func(context.Context)) {
	log := klog.FromContext(ctx)
	log.Info("Starting", "controller", l.Name)
	l.life = ctx
	for _, feed := range feeds {
		l.beside.Go(func() { feed(ctx) })
	}
	l.own(ctx)
	l.beside.Wait()
	log.Info("Stopped", "controller", l.Name)
}

// own is the owner's life: take in everything, let time take effect if it is due, else sleep until
// something comes.
func (l *Loop[E, A]) own(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var second <-chan time.Time
	if l.Tell != nil {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		second = ticker.C
	}
	for ctx.Err() == nil {
		if left := l.CatchUp().Sub(l.Now()); left > 0 {
			timer.Reset(left)
			select {
			case <-ctx.Done():
				return
			case <-l.inbox.more:
				continue
			case <-second:
				l.Tell()
				continue
			case <-timer.C:
			}
		}
		// Either the time has come, or the core wants to go on at once. The inbox is looked at
		// between two Ticks.
		l.Take(l.Tick)
		select {
		case <-second: // whether or not the core comes to rest
			l.Tell()
		default:
		}
	}
}

// CatchUp takes in all that is in the inbox, and returns when the core wants to be woken. Only the
// owner may call it.
func (l *Loop[E, A]) CatchUp() (wake time.Time) {
	messages := l.inbox.take(l.spare)
	for i := range messages {
		if m := &messages[i]; m.look != nil {
			m.look()
		} else {
			l.Take(m.event)
			l.inbox.release(m.size)
		}
		messages[i] = message[E]{}
	}
	l.spare = messages
	return l.Wake(l.Now())
}

// Take gives the core an event immediately, and carries out the actions that follow. Only the owner
// may call it.
func (l *Loop[E, A]) Take(event E) { l.CarryOut(l.Step(l.Now(), event)) }

// CarryOut carries out actions of the core. Only the owner may call it.
func (l *Loop[E, A]) CarryOut(actions []A) {
	for _, action := range actions {
		if request := l.Do(l.life, action); request != nil {
			l.beside.Go(func() { l.See(request(l.life)) })
		}
	}
}

// Left returns the events that came too late: what is in the inbox after Run.
func (l *Loop[E, A]) Left() (events []E) {
	for _, m := range l.inbox.take(nil) {
		if m.look == nil {
			events = append(events, m.event)
		}
	}
	return events
}
