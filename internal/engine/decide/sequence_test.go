// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// sequence is a history of a cluster: its initial state and its events. Every step has a separate
// random seed, so that a failing sequence can be shortened step by step without affecting the
// remaining steps.
type sequence struct {
	seed  uint64
	steps []event
}

// event is one step of a sequence.
type event struct {
	what int // index into happenings
	seed uint64
}

// newSequence draws a sequence. Draws are uniform, because a property-testing library that favours
// the first values of a list never reaches some states.
func newSequence(seed uint64) sequence {
	rng := rand.New(rand.NewPCG(seed, 1))
	total := 0
	for _, h := range happenings {
		total += h.weight
	}
	s := sequence{seed: seed}
	for range 5 + rng.IntN(60) {
		at := rng.IntN(total)
		what := slices.IndexFunc(happenings, func(h happening) bool { at -= h.weight; return at < 0 })
		s.steps = append(s.steps, event{what, rng.Uint64()})
	}
	return s
}

// patience bounds the duration of a sequence, and the time spent on shortening it. A sequence takes
// milliseconds, or up to a second on a busy machine.
const patience = 30 * time.Second

// endless is the prefix of the fault reported for a sequence that does not end.
const endless = "a decision does not end:"

// run plays the sequence and returns the fault, or "" if there is none, and the story up to the
// fault.
func (s sequence) run() (fault string, story []string) {
	d := &draw{Rand: rand.New(rand.NewPCG(s.seed, 2))}
	played := make(chan string, 1)
	go func() { played <- s.play(d) }()

	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case fault := <-played:
		return fault, d.told()
	case <-timeout.C:
		stacks := make([]byte, 1<<16)
		return endless + "\n" + string(stacks[:runtime.Stack(stacks, true)]), d.told()
	}
}

// play plays the sequence and returns the fault, or "" if there is none.
func (s sequence) play(d *draw) (fault string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case found:
			fault = string(r)
		default:
			fault = fmt.Sprintf("panic: %v\n%s", r, debug.Stack())
		}
	}()

	m := newMachine(d)
	for _, step := range s.steps {
		d.Rand = rand.New(rand.NewPCG(step.seed, 3))
		d.say("%s", happenings[step.what].name)
		happenings[step.what].happen(m, d)
	}
	m.recount(d)
	return ""
}

// shortened removes steps that are not needed to reproduce a fault, within the limit of patience.
func (s sequence) shortened() sequence {
	for size, began := len(s.steps)/2, time.Now(); size > 0; {
		shorter := false
		for from := 0; from+size <= len(s.steps) && time.Since(began) < patience; {
			less := sequence{s.seed, slices.Concat(s.steps[:from], s.steps[from+size:])}
			if fault, _ := less.run(); fault != "" && !strings.HasPrefix(fault, endless) {
				s, shorter = less, true
			} else {
				from += size
			}
		}
		if !shorter || size > len(s.steps) {
			size /= 2
		}
	}
	return s
}

// checkSequences plays many sequences.
func checkSequences(t *testing.T, first uint64, count int) {
	for seed := first; seed < first+uint64(count); seed++ {
		s := newSequence(seed)
		fault, story := s.run()
		if fault == "" {
			continue
		}

		if !strings.HasPrefix(fault, endless) {
			s = s.shortened()
			fault, story = s.run()
		}
		t.Fatalf("sequence %d (go test ./internal/engine/decide -run %s -sequence=%d -sequences=1), shortened to %d steps:\n%s\n%s",
			seed, t.Name(), seed, len(s.steps), strings.Join(story, "\n"), fault)
	}
}

// draw draws random values and records the story of the sequence.
type draw struct {
	*rand.Rand
	mu    sync.Mutex
	story []string // guarded by mu, because run also reads it if the sequence does not end
}

// found is a fault.
type found string

// Fatalf ends the sequence with a fault.
func (d *draw) Fatalf(format string, args ...any) { panic(found(fmt.Sprintf(format, args...))) }

func (d *draw) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.story = append(d.story, fmt.Sprintf(format, args...))
}

// told returns the story so far.
func (d *draw) told() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.story)
}

// chance is true with probability p.
func (d *draw) chance(p float64) bool { return d.Float64() < p }

// one draws one of the values, each with the same probability.
func one[T any](d *draw, of ...T) T { return of[d.IntN(len(of))] }
