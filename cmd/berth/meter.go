package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// meter shows progress once a command has taken a while: on a terminal in one line, elsewhere line
// by line.
type meter struct {
	out   *progress
	since time.Time
	next  time.Time // when the words are shown next, until which they may change
	words atomic.Pointer[string]
	done  chan struct{}
	ended chan struct{}
}

// meterAfter is how long a command is silent. meterEvery is how often the line of a terminal then
// changes, and linesEvery how often another line is written elsewhere.
var (
	meterAfter = 2 * time.Second
	meterEvery = 200 * time.Millisecond
	linesEvery = 5 * time.Second
)

func startMeter(stderr io.Writer) *meter {
	now := time.Now()
	return resumeMeter(stderr, now, now.Add(meterAfter))
}

// resumeMeter starts the meter of a command that has been working since then.
func resumeMeter(stderr io.Writer, since, next time.Time) *meter {
	m := &meter{
		out: &progress{out: stderr, terminal: isTerminal(stderr)}, since: since, next: next,
		done: make(chan struct{}), ended: make(chan struct{}),
	}
	go m.showLoop()
	return m
}

func (m *meter) showLoop() {
	defer close(m.ended)
	every := linesEvery
	if m.out.terminal {
		every = meterEvery
	}

	next := time.NewTimer(time.Until(m.next))
	defer next.Stop()
	for {
		select {
		case <-m.done:
			m.out.printFinal("")
			return
		case <-next.C:
			m.showStep()
			m.next = time.Now().Add(every)
			next.Reset(every)
		}
	}
}

func (m *meter) showStep() {
	words := "reading"
	if said := m.words.Load(); said != nil {
		words = *said
	}
	m.out.showStep("berth", words)
}

func (m *meter) showProgress(decided, pods int) {
	if m.isShown() {
		m.setWords(fmt.Sprintf("%d of %d pods", decided, pods))
	}
}

// setWords sets what is shown.
func (m *meter) setWords(words string) { m.words.Store(&words) }

// beginStep sets the command's next step. After a while it is shown on a terminal at once.
func (m *meter) beginStep(words string) {
	m.setWords(words)
	if m.out.terminal && m.isShown() && time.Since(m.since) >= meterAfter {
		m.showStep()
	}
}

// isShown reports whether anyone can see it.
func (m *meter) isShown() bool {
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// stop stops the meter. It may be called more than once.
func (m *meter) stop() {
	select {
	case <-m.done:
	default:
		close(m.done)
	}
	<-m.ended
}

// work is the meter of a command with several steps, which may print lines in between.
type work struct {
	meter *meter
	since time.Time // zero: nothing has begun
	next  time.Time // when the meter speaks next
}

// beginStep shows the next step.
func (w *work) beginStep(stderr io.Writer, words string) *meter {
	if w.since.IsZero() {
		w.since = time.Now()
		w.next = w.since.Add(meterAfter)
	}
	if w.meter == nil {
		w.meter = resumeMeter(stderr, w.since, w.next)
	}
	w.meter.beginStep(words)
	return w.meter
}

// clearLine clears the line, so that another can be printed.
func (w *work) clearLine() {
	if w.meter != nil {
		w.meter.stop()
		w.next, w.meter = w.meter.next, nil
	}
}

// endWork clears the line; what begins then is other work.
func (w *work) endWork() {
	w.clearLine()
	w.since = time.Time{}
}
