// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// MeterAfter is the time before a command shows progress. MeterEvery is the interval between
// updates on a terminal, and LinesEvery the interval between lines elsewhere. Tests set them.
var (
	MeterAfter = 2 * time.Second
	MeterEvery = 200 * time.Millisecond
	LinesEvery = 5 * time.Second
)

// Meter shows the progress of a slow command. The zero Meter is ready to use. Between its steps the
// command may clear the line and write other lines. Only one goroutine may use it at a time, but
// any goroutine may set the words.
type Meter struct {
	words atomic.Pointer[string]
	since time.Time // start of the step; zero: not begun
	next  time.Time // time at which the words are shown next

	out         *Progress
	done, ended chan struct{} // done is nil while nothing can be shown
}

// Begin begins the next step. If the command has already run for MeterAfter, a terminal shows the
// step immediately.
func (m *Meter) Begin(stderr io.Writer, words string) {
	m.Words(words)
	if m.since.IsZero() {
		m.since = time.Now()
		m.next = m.since.Add(MeterAfter)
	}

	if m.done == nil {
		m.out, m.done, m.ended = NewProgress(stderr), make(chan struct{}), make(chan struct{})
		go m.show(m.done)
	}
	if m.out.Terminal && time.Since(m.since) >= MeterAfter {
		m.out.Step("berth", words)
	}
}

func (m *Meter) show(done chan struct{}) {
	defer close(m.ended)
	every := LinesEvery
	if m.out.Terminal {
		every = MeterEvery
	}

	next := time.NewTimer(time.Until(m.next))
	defer next.Stop()
	for {
		select {
		case <-done:
			m.out.Final("")
			return
		case <-next.C:
			m.out.Step("berth", *m.words.Load())
			m.next = time.Now().Add(every)
			next.Reset(every)
		}
	}
}

// Words sets the shown text of the step.
func (m *Meter) Words(words string) { m.words.Store(&words) }

// Pods sets the shown text to the number of decided pods.
func (m *Meter) Pods(decided, pods int) { m.Words(fmt.Sprintf("%d of %d pods", decided, pods)) }

// Clear clears the line, so that another line can be written.
func (m *Meter) Clear() {
	if m.done != nil {
		close(m.done)
		<-m.ended
		m.done = nil
	}
}

// End clears the line and resets the meter, so that a later Begin starts from the beginning.
func (m *Meter) End() {
	m.Clear()
	m.since = time.Time{}
}
