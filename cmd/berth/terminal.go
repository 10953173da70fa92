package main

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/berth-k8s/berth/internal/answer"
)

func isTerminal(w io.Writer) bool { return answer.TerminalOf(w).Width > 0 }

// progress shows what is being started: on a terminal in one line that is overwritten, elsewhere
// line by line.
type progress struct {
	out      io.Writer
	terminal bool

	mu   sync.Mutex
	open bool // the terminal's line is not ended
}

func (p *progress) showStep(part, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal {
		fmt.Fprintf(p.out, "%s: %s\n", part, line)
		return
	}
	p.clearLine()
	if width := answer.TerminalOf(p.out).Width; len(part)+len(line)+2 >= width && width > 10 {
		line = line[:max(0, width-len(part)-6)] + "..."
	}
	fmt.Fprintf(p.out, "%s: %s", part, line)
	p.open = true
}

func (p *progress) showTrouble(part, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLine()
	fmt.Fprintf(p.out, "%s: %s\n", part, what)
}

func (p *progress) printFinal(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLine()
	fmt.Fprint(p.out, text)
}

func (p *progress) clearLine() {
	if p.open {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.open = false
	}
}

// printVisible writes a line with words of a cluster or a file, which must not steer the terminal.
func printVisible(out io.Writer, format string, args ...any) {
	fmt.Fprintln(out, answer.Visible(fmt.Sprintf(format, args...)))
}

// tellLine writes a line about what happened, unless it is empty.
func tellLine(out io.Writer, line string) {
	if line != "" {
		printVisible(out, "%s", line)
	}
}

// shellWord quotes a word for a shell if necessary.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
