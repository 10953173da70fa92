package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/term"
)

// untilSignal ends the context at the first SIGINT or SIGTERM, or SIGHUP when
// the terminal is closed. The second one is not held back: it ends the process
// at once.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progress shows what starts: on a terminal in one line that is written over,
// elsewhere line by line.
type progress struct {
	out      io.Writer
	terminal bool

	mu   sync.Mutex
	open bool // the terminal's line is not ended
}

func (p *progress) step(part, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal {
		fmt.Fprintf(p.out, "%s: %s\n", part, line)
		return
	}
	p.clear()
	if width, _, err := term.GetSize(int(p.out.(*os.File).Fd())); err == nil && len(part)+len(line)+2 >= width && width > 10 {
		line = line[:max(0, width-len(part)-6)] + "..."
	}
	fmt.Fprintf(p.out, "%s: %s", part, line)
	p.open = true
}

func (p *progress) trouble(part, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintf(p.out, "%s: %s\n", part, what)
}

func (p *progress) finish(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprint(p.out, text)
}

func (p *progress) clear() {
	if p.open {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.open = false
	}
}

// shellWord quotes a word for a shell, if it has to be.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
