package bench

import "time"

// rounds divides a measurement into ten rounds and keeps the fastest: whatever else runs on the machine disturbs the others
// more. A round is long enough to have its share of garbage collections.
type rounds struct {
	each time.Duration // of all rounds together

	total, round time.Duration
	steps, all   int
	best         time.Duration // of one step
}

// add counts steps that took so long together.
func (r *rounds) add(steps int, took time.Duration) {
	r.total += took
	r.round += took
	r.steps += steps
	r.all += steps
	if r.round < r.each/10 {
		return
	}
	if one := r.round / time.Duration(r.steps); r.best == 0 || one < r.best {
		r.best = one
	}
	r.round, r.steps = 0, 0
}

func (r *rounds) done() bool { return r.total >= r.each }

// one is what a step takes.
func (r *rounds) one() time.Duration {
	if r.best == 0 { // not even one round
		return r.total / time.Duration(max(r.all, 1))
	}
	return r.best
}
