package live

import (
	"context"
	"sync"
	"time"
)

// patience is how long a plugin may hold a worker before another one stands in for it.
const patience = time.Second

// workers carry out tasks, a bounded number at a time. They begin them in the order in which they
// were queued, so that bindings leave in the order of decisions. The queue itself has no bound.
type workers struct {
	running sync.WaitGroup

	mu      sync.Mutex
	tasks   []func(context.Context) // the next one first
	more    *sync.Cond              // signalled for each task, and at the end
	ended   bool                    // nothing is begun any more
	surplus int                     // workers that are to end, since those that they stood in for are back
}

// newWorkers returns workers without goroutines; runWorkers starts them. Tasks may be added before.
func newWorkers() *workers {
	w := &workers{}
	w.more = sync.NewCond(&w.mu)
	return w
}

// addTask queues a task, and does not block. After the end of runWorkers tasks are dropped.
func (w *workers) addTask(task func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks = append(w.tasks, task)
	w.more.Signal()
}

// runWorkers works with n goroutines until the context ends; what is under way is finished, what
// waits is dropped. Tasks get the context finishing.
func (w *workers) runWorkers(ctx, finishing context.Context, n int) {
	for range n {
		w.startWorker(finishing)
	}
	<-ctx.Done()
	w.mu.Lock()
	w.ended = true
	w.more.Broadcast()
	w.mu.Unlock()
	w.running.Wait()
}

// startWorker starts a goroutine that carries out tasks until it is surplus or the end has come.
func (w *workers) startWorker(finishing context.Context) {
	w.running.Go(func() {
		for task := w.nextTask(); task != nil; task = w.nextTask() {
			task(finishing)
		}
	})
}

// lendWorker is called by a task before it calls a plugin, and what it returns afterwards: a plugin
// that takes long, or never returns, holds up no other task. ctx is that of the task, which the
// stand-in works with. When the plugin is back, one worker too many ends.
func (w *workers) lendWorker(ctx context.Context) (back func()) {
	overdue := time.AfterFunc(patience, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.ended {
			w.startWorker(ctx)
		}
	})
	return func() {
		if !overdue.Stop() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.surplus++
		}
	}
}

// hasWaiting reports whether tasks wait.
func (w *workers) hasWaiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tasks) > 0
}

// nextTask waits for a task; nil ends the worker that asks. The array keeps no task that was taken,
// since tasks hold pods.
func (w *workers) nextTask() func(context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.surplus > 0 {
		w.surplus--
		return nil
	}
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
