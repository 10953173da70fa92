package live

import (
	"context"
	"sync"
)

// workers carry out tasks, a bounded number at a time. They begin them in the order in which they
// were queued.
type workers struct {
	mu    sync.Mutex
	tasks []func(context.Context)
	more  *sync.Cond
	ended bool
}

func newWorkers() *workers {
	w := &workers{}
	w.more = sync.NewCond(&w.mu)
	return w
}

// do queues a task. After the end of run tasks are dropped.
func (w *workers) do(task func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks = append(w.tasks, task)
	w.more.Signal()
}

// run works with n goroutines until the context ends; what is under way is finished, what waits is
// dropped.
func (w *workers) run(ctx context.Context, n int) {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = true
		w.more.Broadcast()
	})
	defer stop()
	var running sync.WaitGroup
	finishing := context.WithoutCancel(ctx)
	for range n {
		running.Go(func() {
			for task := w.next(); task != nil; task = w.next() {
				task(finishing)
			}
		})
	}
	running.Wait()
}

// busy reports whether tasks wait.
func (w *workers) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tasks) > 0
}

func (w *workers) next() func(context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.tasks) == 0 && !w.ended {
		w.more.Wait()
	}
	if w.ended {
		return nil
	}
	task := w.tasks[0]
	w.tasks[0] = nil
	w.tasks = w.tasks[1:]
	return task
}
