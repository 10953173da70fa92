package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// meter shows progress on a terminal once a command has taken a while.
type meter struct {
	out   *progress // nil: there is no terminal
	since time.Time
	words atomic.Pointer[string]
	done  chan struct{}
	ended chan struct{}
}

// meterAfter is how long a command is silent; meterEvery is how often the line then changes.
var (
	meterAfter = 2 * time.Second
	meterEvery = 200 * time.Millisecond
)

func startMeter(stderr io.Writer) *meter { return resumeMeter(stderr, time.Now()) }

// resumeMeter starts the meter of a command that has been working since then.
func resumeMeter(stderr io.Writer, since time.Time) *meter {
	m := &meter{since: since, done: make(chan struct{}), ended: make(chan struct{})}
	if !isTerminal(stderr) {
		close(m.ended)
		return m
	}
	m.out = &progress{out: stderr, terminal: true}
	go m.show()
	return m
}

func (m *meter) show() {
	defer close(m.ended)
	next := time.NewTimer(time.Until(m.since.Add(meterAfter)))
	defer next.Stop()
	for {
		select {
		case <-m.done:
			m.out.finish("")
			return
		case <-next.C:
			m.step()
			next.Reset(meterEvery)
		}
	}
}

func (m *meter) step() {
	words := "reading"
	if said := m.words.Load(); said != nil {
		words = *said
	}
	m.out.step("berth", words)
}

func (m *meter) at(decided, pods int) {
	if m.shows() {
		m.say(fmt.Sprintf("%d of %d pods", decided, pods))
	}
}

// say sets what is shown.
func (m *meter) say(words string) { m.words.Store(&words) }

// begin sets the command's next step. After a while it is shown at once.
func (m *meter) begin(words string) {
	m.say(words)
	if m.shows() && time.Since(m.since) >= meterAfter {
		m.step()
	}
}

// shows reports whether anyone can see it.
func (m *meter) shows() bool {
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
}

// begin shows the next step.
func (w *work) begin(stderr io.Writer, words string) *meter {
	if w.since.IsZero() {
		w.since = time.Now()
	}
	if w.meter == nil {
		w.meter = resumeMeter(stderr, w.since)
	}
	w.meter.begin(words)
	return w.meter
}

// pause clears the line, so that another can be printed.
func (w *work) pause() {
	if w.meter != nil {
		w.meter.stop()
		w.meter = nil
	}
}

// end clears the line; what begins then is other work.
func (w *work) end() {
	w.pause()
	w.since = time.Time{}
}
