// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"io"
	"sync"

	"github.com/berth-k8s/berth/internal/answer"
)

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
