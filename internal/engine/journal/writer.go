package journal

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

const (
	// flushEvery bounds what a kill loses.
	flushEvery = 500 * time.Millisecond
	// mostWaiting bounds the records that were not written yet; then whoever adds one waits.
	mostWaiting = 1 << 14
	// suffix of the files.
	suffix = ".journal"
)

// Writer writes a journal. Add belongs to the goroutine that steps the core; the rest is done on one of its own.
type Writer struct {
	records chan record
	done    chan struct{}
	mu      sync.Mutex
	err     error // why it ended before Close
}

type record struct {
	at      time.Time
	event   cycle.Event
	actions string
}

// Create begins a journal in a folder, which is made if it is not there. Of journals that were there before the oldest are removed
// until what is there, this one included, takes no more than most bytes; a journal that becomes as large ends.
func Create(dir string, h Header, most int64) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	if err := makeRoom(dir, most/2); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, h.Began.UTC().Format("20060102T150405.000")+suffix)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return nil, err
	}
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriterSize(f, 1<<18)
	if _, err := out.WriteString(magic); err != nil {
		return nil, err
	}
	n, err := writeFrame(out, head)
	if err != nil {
		return nil, err
	}
	w := &Writer{records: make(chan record, mostWaiting), done: make(chan struct{})}
	go w.run(f, out, h.Began, most/2-int64(n))
	return w, out.Flush()
}

// makeRoom removes the oldest journals until they take no more than most bytes.
func makeRoom(dir string, most int64) error {
	names, err := Files(dir)
	if err != nil {
		return err
	}
	var size int64
	for _, name := range slices.Backward(names) {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if size += info.Size(); size > most {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Files are the journals of a folder, the oldest first.
func Files(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	slices.Sort(names)
	return names, err
}

// Add notes an event and what followed from it. After the journal has ended it does nothing.
func (w *Writer) Add(at time.Time, e cycle.Event, actions []cycle.Action) {
	select {
	case w.records <- record{at, e, Text(actions)}:
	case <-w.done:
	}
}

// Text is the actions as journals hold them.
func Text(actions []cycle.Action) string {
	if len(actions) == 0 {
		return ""
	}
	var b strings.Builder
	for i, action := range actions {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(strings.ReplaceAll(action.String(), "\n", `\n`))
	}
	return b.String()
}

// Err is why the journal has ended, if it has.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close writes what waits. Nothing may be added afterwards.
func (w *Writer) Close(ctx context.Context) error {
	close(w.records)
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	return w.Err()
}

// run writes until Close, a fault, or until the journal is as large as it may become.
func (w *Writer) run(f *os.File, out *bufio.Writer, last time.Time, room int64) {
	defer close(w.done)
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	err := w.write(out, last, room, flush.C)
	if flushed := out.Flush(); err == nil {
		err = flushed
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *Writer) write(out *bufio.Writer, last time.Time, room int64, flush <-chan time.Time) error {
	var payload []byte
	for {
		select {
		case <-flush:
			if err := out.Flush(); err != nil {
				return err
			}
		case r, open := <-w.records:
			if !open {
				return nil
			}
			var err error
			payload = binary.AppendVarint(payload[:0], r.at.Sub(last).Nanoseconds())
			if payload, err = encode(payload, r.event); err != nil {
				return err
			}
			payload = appendText(payload, r.actions)
			last = r.at
			n, err := writeFrame(out, payload)
			if err != nil {
				return err
			}
			if room -= int64(n); room < 0 {
				return fmt.Errorf("the journal has reached its size and ends")
			}
		}
	}
}
