// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package print

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/usage"
)

// Line writes a line that may have text from a cluster or a file. It makes control characters
// visible, so that they do not control the terminal.
func Line(out io.Writer, format string, args ...any) {
	fmt.Fprintln(out, answer.Visible(fmt.Sprintf(format, args...)))
}

// PrintLine writes a line, unless it is empty.
func PrintLine(out io.Writer, line string) {
	if line != "" {
		Line(out, "%s", line)
	}
}

// Once writes each distinct text only once.
type Once struct {
	Out     io.Writer
	written []string
}

func (o *Once) Write(text []byte) (int, error) {
	if slices.Contains(o.written, string(text)) {
		return len(text), nil
	}
	o.written = append(o.written, string(text))
	return o.Out.Write(text)
}

// OneLine formats an error on one line. Some libraries list several causes on separate lines.
func OneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// ShellWord quotes a word for a shell if necessary.
func ShellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Formats lists the formats of results about a cluster.
var Formats = append(slices.Clone(answer.Formats), "name", "wide")

// CheckFormat checks --output.
func CheckFormat(output string, allowed []string) error {
	if err := answer.Check(output, allowed...); err != nil {
		return usage.Errorf("--output %w", err)
	}
	return nil
}

// FormatsUsage is the text of a flag --output.
func FormatsUsage(allowed []string) string { return answer.Choice(allowed) + "; by default a table" }

// ExitHeld is the exit code of a command whose result meets a condition of --fail-on.
const ExitHeld = 3

// heldError is not a failure of the command.
type heldError struct{ error }

// Held returns an error with the exit code ExitHeld if the result meets conditions of --fail-on.
func Held(conditions []string, holds func(condition string) bool) error {
	held := slices.DeleteFunc(slices.Clone(conditions), func(c string) bool { return !holds(c) })
	if len(held) == 0 {
		return nil
	}
	return HeldError(fmt.Errorf("--fail-on %s: condition met", strings.Join(held, ", ")))
}

// HeldError is an error with the exit code ExitHeld.
func HeldError(err error) error { return heldError{err} }

// IsHeld reports whether an error has the exit code ExitHeld.
func IsHeld(err error) bool { return errors.As(err, new(heldError)) }

// Noticed records whether anything was written, and the first error.
type Noticed struct {
	io.Writer
	Any bool
	Err error
}

func (n *Noticed) Write(text []byte) (int, error) {
	n.Any = true
	size, err := n.Writer.Write(text)
	n.Err = cmp.Or(n.Err, err)
	return size, err
}

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
