package logfile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// sink collects what is shown.
type sink struct {
	mu      sync.Mutex
	shown   bytes.Buffer
	flushed string
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.Write(p)
}

func (s *sink) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushed = s.shown.String()
	return nil
}

func (s *sink) seen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flushed
}

func TestRead(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "0.log")
	datadriven.RunTest(t, "testdata/read.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "file":
			content := d.Input + "\n"
			if d.HasArg("unended") {
				content = d.Input
			} else if d.HasArg("empty") {
				content = ""
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			return ""
		case "read":
			var out sink
			if err := Read(t.Context(), root, path, options(t, d), &out); err != nil {
				return err.Error()
			}
			shown := out.seen()
			if shown != "" && !strings.HasSuffix(shown, "\n") {
				shown += "\n"
			}
			return shown
		}
		t.Fatalf("%s: no such command", d.Cmd)
		return ""
	})
}

func options(t *testing.T, d *datadriven.TestData) (o Options) {
	for _, arg := range d.CmdArgs {
		value := ""
		if len(arg.Vals) > 0 {
			value = strings.Join(arg.Vals, ",")
		}
		n, _ := strconv.ParseInt(value, 10, 64)
		switch arg.Key {
		case "tail":
			o.Tail = &n
		case "limit":
			o.Limit = &n
		case "timestamps":
			o.Timestamps = true
		case "only":
			o.Only = Stream(value)
		case "since":
			since, err := time.Parse(time.RFC3339, value)
			if err != nil {
				t.Fatal(err)
			}
			o.Since = since
		default:
			t.Fatalf("%s: no such option", arg.Key)
		}
	}
	return o
}

// program is a container that writes, and is rotated, as containerd does it.
type program struct {
	t    testing.TB
	path string
	file *os.File
	n    int
}

func newProgram(t testing.TB, path string) *program {
	p := &program{t: t, path: path}
	p.open()
	return p
}

func (p *program) open() {
	file, err := os.OpenFile(p.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	p.file = file
}

func (p *program) write(lines int) {
	for range lines {
		fmt.Fprintf(p.file, "%s stdout F line %d\n", time.Now().UTC().Format(time.RFC3339Nano), p.n)
		p.n++
	}
}

// rename is the first half of a rotation, reopen the second; what is written between them goes to
// the old file.
func (p *program) rename(to string) {
	if err := os.Rename(p.path, p.path+to); err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) reopen() {
	_ = p.file.Close()
	p.open()
}

func (p *program) expected() string {
	var all strings.Builder
	for i := range p.n {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	return all.String()
}

func TestFollowingLosesAndRepeatsNothingWhenRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		p := newProgram(t, filepath.Join(root, "0.log"))
		p.write(3)
		var ended atomic.Bool
		var out sink
		done := make(chan error)
		go func() {
			done <- Read(t.Context(), root, p.path, Options{Follow: true, Running: func(context.Context) (bool, error) { return !ended.Load(), nil }}, &out)
		}()
		time.Sleep(2 * poll)
		p.write(2)
		time.Sleep(2 * poll)
		for i := range 3 {
			p.write(1)
			p.rename(fmt.Sprintf(".%d", i))
			p.write(2) // after the name is gone, before the runtime opens the new file
			time.Sleep(2 * poll)
			// The runtime opens the new file before it releases the old one.
			next, err := os.OpenFile(p.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			p.write(2)
			time.Sleep(2 * poll)
			p.write(2)
			_ = p.file.Close()
			p.file = next
			p.write(4)
			time.Sleep(3 * settle)
			if out.seen() != p.expected() {
				t.Fatalf("after rotation %d shown:\n%s\nwritten:\n%s", i, out.seen(), p.expected())
			}
		}
		// Rotated and ended at once.
		p.write(1)
		p.rename(".last")
		p.reopen()
		p.write(2)
		ended.Store(true)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if out.seen() != p.expected() {
			t.Errorf("shown:\n%s\nwritten:\n%s", out.seen(), p.expected())
		}
	})
}

func TestFollowingSeesAFileThatWasEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		p := newProgram(t, filepath.Join(root, "0.log"))
		p.write(3)
		var out sink
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- Read(ctx, root, p.path, Options{Follow: true, Running: func(context.Context) (bool, error) { return true, nil }}, &out)
		}()
		time.Sleep(2 * poll)
		if err := os.Truncate(p.path, 0); err != nil {
			t.Fatal(err)
		}
		p.write(1)
		time.Sleep(2 * poll)
		if out.seen() != p.expected() {
			t.Errorf("shown:\n%s\nwritten:\n%s", out.seen(), p.expected())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A line is shown when it is whole, not before, and then at once.
func TestFollowingWaitsForTheEndOfALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		p := newProgram(t, filepath.Join(root, "0.log"))
		var out sink
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- Read(ctx, root, p.path, Options{Follow: true, Running: func(context.Context) (bool, error) { return true, nil }}, &out)
		}()
		fmt.Fprint(p.file, "2026-11-20T14:00:02Z stdout F be")
		time.Sleep(2 * poll)
		if out.seen() != "" {
			t.Errorf("shown %q", out.seen())
		}
		fmt.Fprint(p.file, "gun\n")
		time.Sleep(2 * poll)
		if out.seen() != "begun\n" {
			t.Errorf("shown %q", out.seen())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNotFollowingEndsAlthoughTheProgramWritesOn(t *testing.T) {
	root := t.TempDir()
	p := newProgram(t, filepath.Join(root, "0.log"))
	p.write(3)
	want := p.expected()
	busy := writerFunc(func(text []byte) { p.write(1) })
	if err := Read(t.Context(), root, p.path, Options{}, &busy); err != nil {
		t.Fatal(err)
	}
	if busy.shown.String() != want {
		t.Errorf("shown:\n%s\nwhen it began there was:\n%s", busy.shown.String(), want)
	}
}

func writerFunc(also func([]byte)) busyWriter { return busyWriter{also: also} }

type busyWriter struct {
	shown bytes.Buffer
	also  func([]byte)
}

func (b *busyWriter) Write(p []byte) (int, error) { b.also(p); return b.shown.Write(p) }
func (b *busyWriter) Flush() error                { return nil }

// Whatever a program writes, and however the runtime cuts it, is shown as it was written; the last
// lines are the last.
func TestAnythingWrittenIsShown(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "0.log")
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 50), rapid.IntRange(0, 3*pieceSize)), 0, 12).Draw(t, "lengths")
		cut := rapid.SampledFrom([]int{7, 4096, 16 << 10, 10 * pieceSize}).Draw(t, "cut")
		var file bytes.Buffer
		var lines []string
		for i, length := range lengths {
			line := strings.Repeat(string(rune('a'+i)), length) + "\n"
			lines = append(lines, line)
			for len(line) > cut+1 {
				fmt.Fprintf(&file, "2026-11-20T14:00:02Z stdout P %s\n", line[:cut])
				line = line[cut:]
			}
			fmt.Fprintf(&file, "2026-11-20T14:00:02Z stdout F %s", line)
		}
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		tail := int64(rapid.IntRange(0, len(lines)+2).Draw(t, "tail"))
		var out sink
		if err := Read(context.Background(), root, path, Options{Tail: &tail}, &out); err != nil {
			t.Fatal(err)
		}
		want := strings.Join(lines[max(0, len(lines)-int(tail)):], "")
		if out.seen() != want {
			t.Fatalf("shown %d bytes, wanted %d", len(out.seen()), len(want))
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, line := range []string{
		"2026-11-20T14:00:02.5Z stdout F text\n", "2026-11-20T14:00:02Z stderr P part\n", "2026-11-20T14:00:02Z stdout F \n",
		"2026-11-20T14:00:02Z stdout F", "", " ", "\n", "2026-11-20T14:00:02Z stdin F x\n", "a b c d\n",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, ok := parse(line)
		if !ok {
			return
		}
		if e.stream != Stdout && e.stream != Stderr {
			t.Errorf("stream %q", e.stream)
		}
		if !e.partial && !bytes.HasSuffix(line, e.text) {
			t.Errorf("text %q is not the end of %q", e.text, line)
		}
	})
}
