package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// meter shows on a terminal how far a command is, once it has taken a while.
type meter struct {
	words atomic.Pointer[string]
	done  chan struct{}
	ended chan struct{}
}

const (
	meterAfter = 2 * time.Second
	meterEvery = 200 * time.Millisecond
)

func startMeter(stderr io.Writer) *meter {
	m := &meter{done: make(chan struct{}), ended: make(chan struct{})}
	if !isTerminal(stderr) {
		close(m.ended)
		return m
	}
	go m.show(&progress{out: stderr, terminal: true})
	return m
}

func (m *meter) show(p *progress) {
	defer close(m.ended)
	next := time.NewTimer(meterAfter)
	defer next.Stop()
	for {
		select {
		case <-m.done:
			p.finish("")
			return
		case <-next.C:
			if words := m.words.Load(); words != nil {
				p.step("berth", *words)
			} else {
				p.step("berth", "reading")
			}
			next.Reset(meterEvery)
		}
	}
}

func (m *meter) at(decided, pods int) {
	if m.shows() {
		m.say(fmt.Sprintf("%d of %d pods", decided, pods))
	}
}

// say sets what is shown.
func (m *meter) say(words string) { m.words.Store(&words) }

// shows tells whether anybody sees it.
func (m *meter) shows() bool {
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// stop may be called again.
func (m *meter) stop() {
	select {
	case <-m.done:
	default:
		close(m.done)
	}
	<-m.ended
}
