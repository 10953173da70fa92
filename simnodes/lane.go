package simnodes

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/berth-k8s/berth/simnodes/kubelet"
)

// lane is a queue of actions with its own workers. Adding never blocks, so the
// goroutine that owns the fleet never waits for the API server; the fleet has
// at most one action under way for an object, which bounds the queue.
type lane struct {
	mu    sync.Mutex
	queue []kubelet.Action
	more  chan struct{} // has room for one: somebody should look
}

func startLane(ctx context.Context, group *errgroup.Group, workers int, s *sender, done chan<- result) *lane {
	l := &lane{more: make(chan struct{}, 1)}
	for range workers {
		group.Go(func() error {
			for {
				a, ok := l.take(ctx)
				if !ok {
					return nil
				}
				outcome, object := s.send(ctx, a)
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

func (l *lane) add(a kubelet.Action) {
	l.mu.Lock()
	l.queue = append(l.queue, a)
	l.mu.Unlock()
	l.wake()
}

func (l *lane) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

func (l *lane) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// take waits for an action; false when ctx ended.
func (l *lane) take(ctx context.Context) (kubelet.Action, bool) {
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
				l.wake()
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
