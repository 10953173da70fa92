// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
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

// Progress shows the current work: on a terminal in one line that is overwritten, elsewhere line by
// line.
type Progress struct {
	Out      io.Writer
	Terminal bool // output is a terminal

	mu   sync.Mutex
	open bool // the terminal's line is incomplete
}

// NewProgress shows progress on out.
func NewProgress(out io.Writer) *Progress {
	return &Progress{Out: out, Terminal: answer.TerminalOf(out).Width > 0}
}

// Step shows the current work of a component.
func (p *Progress) Step(part, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Terminal {
		fmt.Fprintf(p.Out, "%s: %s\n", part, line)
		return
	}
	p.clearLine()
	if width := answer.TerminalOf(p.Out).Width; len(part)+len(line)+2 >= width && width > 10 {
		line = line[:max(0, width-len(part)-6)] + "..."
	}
	fmt.Fprintf(p.Out, "%s: %s", part, line)
	p.open = true
}

// Trouble writes a line that later steps do not overwrite.
func (p *Progress) Trouble(part, what string) { p.Final(part + ": " + what + "\n") }

// Final clears the line, and writes a text that later steps do not overwrite.
func (p *Progress) Final(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLine()
	fmt.Fprint(p.Out, text)
}

func (p *Progress) clearLine() {
	if p.open {
		fmt.Fprint(p.Out, "\r\x1b[K")
		p.open = false
	}
}
