// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"sync"
	"time"
)

// patience is the time after which a worker that waits for a plugin is replaced by a stand-in.
const patience = time.Second

// workers carries out tasks on a bounded number of goroutines. Tasks begin in the order of the
// queue, so that bindings are sent in the order of decisions. The queue itself is unbounded.
type workers struct {
	running sync.WaitGroup

	mu      sync.Mutex
	tasks   []func(context.Context) // in queue order
	more    *sync.Cond              // signaled for each task and at the end
	ended   bool                    // no further tasks begin
	surplus int                     // number of workers that must end, because replaced workers continue
}

// newWorkers returns workers without goroutines; runWorkers starts them. Tasks may be added before.
func newWorkers() *workers {
	w := &workers{}
	w.more = sync.NewCond(&w.mu)
	return w
}

// addTask queues a task without blocking. Tasks added after the end of runWorkers are dropped.
func (w *workers) addTask(task func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks = append(w.tasks, task)
	w.more.Signal()
}

// runWorkers runs tasks on n goroutines until ctx ends. Running tasks are then finished, and queued
// tasks are dropped. Tasks get the context finishing.
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

// startWorker starts a goroutine that carries out tasks until it is surplus or runWorkers ends.
func (w *workers) startWorker(finishing context.Context) {
	w.running.Go(func() {
		for task := w.nextTask(); task != nil; task = w.nextTask() {
			task(finishing)
		}
	})
}

// A task calls lendWorker before it calls a plugin, and calls the returned function when the plugin
// has returned. If the plugin takes longer than patience, a stand-in worker is started, so that the
// plugin does not delay other tasks. ctx is the task's context, which the stand-in uses for its
// tasks. The worker that returns late, or another one, then ends.
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

// hasWaiting reports whether tasks are queued.
func (w *workers) hasWaiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tasks) > 0
}

// nextTask waits for a task. It returns nil if the calling worker must end. The array retains no
// reference to a returned task, since tasks refer to pods.
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
