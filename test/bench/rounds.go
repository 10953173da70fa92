// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"time"

	"github.com/berth-k8s/berth/test/internal/process"
)

// Cost is the cost of one decision.
type Cost struct {
	// Wall is the elapsed time. CPU is the CPU time of all threads of the process in that time,
	// including garbage collection.
	Wall, CPU time.Duration
}

// rounds divides a measurement into ten rounds and keeps the costs of the fastest round, which is
// least disturbed by other work on the machine. A round is long enough to contain a typical share
// of garbage collection.
type rounds struct {
	each time.Duration // total time of all rounds

	started  time.Time
	startCPU time.Duration

	round, total Cost
	steps, all   int
	best         Cost // cost of one step
}

func (r *rounds) startStep() { r.started, r.startCPU = time.Now(), process.Own() }

// stopSteps adds the time since startStep, in which the given number of steps was done, to the
// round.
func (r *rounds) stopSteps(steps int) {
	took := Cost{time.Since(r.started), process.Own() - r.startCPU}
	r.round, r.total = r.round.plus(took), r.total.plus(took)
	r.steps += steps
	r.all += steps
	if r.round.Wall >= r.each/10 {
		r.finishRound()
	}
}

// finishRound ends a round.
func (r *rounds) finishRound() {
	one := r.round.over(r.steps)
	if r.best.Wall == 0 || one.Wall < r.best.Wall {
		r.best.Wall = one.Wall
	}
	if r.best.CPU == 0 || one.CPU < r.best.CPU {
		r.best.CPU = one.CPU
	}
	r.round, r.steps = Cost{}, 0
}

func (r *rounds) isDone() bool { return r.total.Wall >= r.each }

// costOfStep returns the cost of a step in the fastest round.
func (r *rounds) costOfStep() Cost {
	if r.best.Wall == 0 { // not even one round was completed
		return r.total.over(max(r.all, 1))
	}
	if r.round.Wall >= r.each/50 { // the last round is incomplete, but long enough to count
		r.finishRound()
	}
	return r.best
}

func (c Cost) plus(o Cost) Cost { return Cost{c.Wall + o.Wall, c.CPU + o.CPU} }

func (c Cost) over(steps int) Cost {
	return Cost{c.Wall / time.Duration(steps), c.CPU / time.Duration(steps)}
}
