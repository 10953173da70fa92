// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"sync"
	"time"
)

// patience is the time after which a plugin holding a worker is given a stand-in.
const patience = time.Second

// workers carry out tasks, a bounded number at a time. They begin them in queue order, so that
// bindings leave in the order of decisions. The queue itself is unbounded.
type workers struct {
	running sync.WaitGroup

	mu      sync.Mutex
	tasks   []func(context.Context) // in queue order
	more    *sync.Cond              // signaled for each task and at the end
	ended   bool                    // nothing new is begun
	surplus int                     // number of workers that must end, because replaced workers have returned
}

// newWorkers returns workers without goroutines; runWorkers starts them. Tasks may be added before.
func newWorkers() *workers {
	w := &workers{}
	w.more = sync.NewCond(&w.mu)
	return w
}

// addTask queues a task without blocking. After the end of runWorkers tasks are dropped.
func (w *workers) addTask(task func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks = append(w.tasks, task)
	w.more.Signal()
}

// runWorkers works with n goroutines until the context ends; then running tasks are finished and
// waiting ones dropped. Tasks get the context finishing.
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

// startWorker starts a goroutine carrying out tasks until it is surplus or runWorkers ends.
func (w *workers) startWorker(finishing context.Context) {
	w.running.Go(func() {
		for task := w.nextTask(); task != nil; task = w.nextTask() {
			task(finishing)
		}
	})
}

// lendWorker is called by a task before it calls a plugin, and its result afterwards: a plugin that
// takes long, or never returns, delays no other task. ctx is the task's context, and is used by the
// stand-in. When the plugin has returned, one surplus worker ends.
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

// nextTask waits for a task; nil ends the calling worker. The array keeps no reference to a taken
// task, since tasks hold pods.
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
