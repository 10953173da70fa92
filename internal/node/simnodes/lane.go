package simnodes

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-k8s/berth/internal/node/simnodes/kubelet"
)

// lane is a queue of actions with its own workers. Adding never blocks, so the goroutine that owns
// the fleet never waits for the API server. The fleet has at most one action in flight per object,
// which bounds the queue.
//
// A lane can have another one that takes precedence: as long as that one has queued actions, three
// quarters of its own workers pause. An API server that is too slow for everything then serves the
// Leases, and the nodes stay alive.
type lane struct {
	first *lane // may be nil

	mu    sync.Mutex
	queue []kubelet.Action
	more  chan struct{} // has one element when a worker should look at the queue
}

// holdBack is how often a paused worker checks again.
const holdBack = 20 * time.Millisecond

// sendFunc carries out an action.
type sendFunc func(ctx context.Context, a kubelet.Action) (kubelet.Outcome, any)

func startLane(ctx context.Context, group *errgroup.Group, workers int, first *lane, send sendFunc, done chan<- result) *lane {
	l := &lane{first: first, more: make(chan struct{}, 1)}
	for i := range workers {
		yields := first != nil && i >= max(workers/4, 1)
		group.Go(func() error {
			for {
				if yields && !l.letPass(ctx) {
					return nil
				}
				a, ok := l.takeAction(ctx)
				if !ok {
					return nil
				}
				outcome, object := send(ctx, a)
				if a.Kind == kubelet.Report {
					continue
				}
				select {
				case done <- result{a, outcome, object}:
				case <-ctx.Done():
					return nil
				}
			}
		})
	}

	return l
}

func (l *lane) addAction(a kubelet.Action) {
	l.mu.Lock()
	l.queue = append(l.queue, a)
	l.mu.Unlock()
	l.wakeTaker()
}

func (l *lane) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

func (l *lane) wakeTaker() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// letPass waits until the lane that takes precedence is empty; false if ctx has ended.
func (l *lane) letPass(ctx context.Context) bool {
	for l.first.len() > 0 {
		select {
		case <-time.After(holdBack):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// takeAction waits for an action; false when ctx ended.
func (l *lane) takeAction(ctx context.Context) (kubelet.Action, bool) {
	for {
		if ctx.Err() != nil {
			return kubelet.Action{}, false
		}
		l.mu.Lock()
		if len(l.queue) > 0 {
			a := l.queue[0]
			l.queue[0] = kubelet.Action{}
			l.queue = l.queue[1:]
			rest := len(l.queue)
			l.mu.Unlock()
			if rest > 0 {
				l.wakeTaker()
			}
			return a, true
		}

		l.mu.Unlock()
		select {
		case <-l.more:
		case <-ctx.Done():
		}
	}
}
