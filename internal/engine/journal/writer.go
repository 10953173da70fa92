package journal

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

const (
	// flushEvery bounds what a kill loses.
	flushEvery = 500 * time.Millisecond
	// mostWaiting bounds the records that were not written yet; then whoever adds one waits.
	mostWaiting = 1 << 14
	// shares is how many files a journal has at least when it is as large, or as old, as it may
	// become: the oldest goes as a whole.
	shares = 4
	// suffix of the files.
	suffix = ".journal"
)

// Limits bound the journals of a folder.
type Limits struct {
	Size int64         // in bytes
	Age  time.Duration // 0: none
}

// Writer writes a journal: one file after the other, each of which can be played alone. Add, Due
// and Turn belong to the goroutine that steps the core; the rest is done on one of the writer's
// own.
type Writer struct {
	records chan record
	done    chan struct{}
	due     atomic.Bool
	strips  bool
	mu      sync.Mutex
	err     error // why it ended before Close
}

// record is an event with what followed from it, or, with turned, the wish for a new file.
type record struct {
	at      time.Time
	event   cycle.Event
	actions string

	seed   uint64
	turned chan<- turned
}

type turned struct {
	events []cycle.Event
	err    error
}

// file is the journal's file that is being written, and what the next one needs to know.
type file struct {
	dir    string
	header Header
	limits Limits
	known  *known // nil: this is the last file

	f    *os.File
	out  *bufio.Writer
	size int64
	last time.Time // of the last record
}

// Create begins a journal in a folder, which is made if it is not there. The oldest files of the
// folder are removed when they are too old or take too much.
func Create(dir string, h Header, l Limits) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	j := &file{dir: dir, header: h, limits: l}
	if !h.Outside {
		j.known = newKnown()
	}
	if err := j.open(); err != nil {
		return nil, err
	}
	w := &Writer{records: make(chan record, mostWaiting), done: make(chan struct{}), strips: j.known != nil}
	go w.run(j)
	return w, nil
}

// open begins a file.
func (j *file) open() error {
	if err := makeRoom(j.dir, j.limits, j.header.Began); err != nil {
		return err
	}
	name := filepath.Join(j.dir, j.header.Began.UTC().Format("20060102T150405.000")+suffix)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	head, err := json.Marshal(j.header)
	if err != nil {
		return err
	}
	j.f, j.out, j.last, j.size = f, bufio.NewWriterSize(f, 1<<18), j.header.Began, 0
	if _, err := j.out.WriteString(magic); err != nil {
		return err
	}
	n, err := writeFrame(j.out, head)
	if err != nil {
		return err
	}
	j.size += int64(n)
	return j.out.Flush()
}

// makeRoom removes the oldest files until they take no more than their share of the size, and those
// that are too old.
func makeRoom(dir string, l Limits, now time.Time) error {
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
		size += info.Size()
		if size > l.Size/2 || l.Age > 0 && now.Sub(info.ModTime()) > l.Age {
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
	case w.records <- record{at: at, event: e, actions: Text(actions)}:
	case <-w.done:
	}
}

// Strips tells whether the core is to be shown objects as the journal has them: it may have to be
// made anew from them.
func (w *Writer) Strips() bool { return w.strips }

// Due tells whether the file is large or old enough for the journal to go on in another one.
func (w *Writer) Due() bool { return w.due.Load() }

// Turn begins a new file, for a core that is made anew with that seed. It returns the events that
// tell the core what is known; they are yet to be added.
func (w *Writer) Turn(at time.Time, seed uint64) ([]cycle.Event, error) {
	answer := make(chan turned, 1)
	select {
	case w.records <- record{at: at, seed: seed, turned: answer}:
	case <-w.done:
		return nil, errors.New("the journal has ended")
	}
	select {
	case t := <-answer:
		return t.events, t.err
	case <-w.done:
		return nil, errors.New("the journal has ended")
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

// run writes until Close, a fault, or until a file that could not be turned is as large as it may
// become.
func (w *Writer) run(j *file) {
	defer close(w.done)
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	err := w.write(j, flush.C)
	if closed := j.close(); err == nil {
		err = closed
	}
	w.due.Store(false)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *Writer) write(j *file, flush <-chan time.Time) error {
	var payload []byte
	for {
		select {
		case <-flush:
			if err := j.out.Flush(); err != nil {
				return err
			}
			w.due.Store(j.due())
		case r, open := <-w.records:
			if !open {
				return nil
			}
			if r.turned != nil {
				events, err := j.turn(r.at, r.seed)
				w.due.Store(false)
				r.turned <- turned{events, err}
				if err != nil {
					return err
				}
				continue
			}
			var err error
			if payload, err = j.add(payload, r); err != nil {
				return err
			}
		}
	}
}

// add writes a record; buffer is used again.
func (j *file) add(buffer []byte, r record) ([]byte, error) {
	payload := binary.AppendVarint(buffer[:0], r.at.Sub(j.last).Nanoseconds())
	begin := len(payload)
	payload, err := encode(payload, r.event)
	if err != nil {
		return payload, err
	}
	if j.known != nil {
		j.known.note(r.event, payload[begin:])
	}
	if e, ok := r.event.(cycle.Configured); ok && len(e.Source) > 0 {
		j.header.Configuration = string(e.Source)
	}
	payload = appendText(payload, r.actions)
	j.last = r.at
	n, err := writeFrame(j.out, payload)
	if j.size += int64(n); err == nil && j.size > j.limits.Size/2 {
		err = fmt.Errorf("the journal has reached its size and ends")
	}
	return payload, err
}

// due tells whether it is time for the next file.
func (j *file) due() bool {
	return j.known != nil && (j.size > j.limits.Size/shares || j.limits.Age > 0 && j.last.Sub(j.header.Began) > j.limits.Age/shares)
}

// turn goes on in a new file.
func (j *file) turn(at time.Time, seed uint64) ([]cycle.Event, error) {
	events, err := j.known.tell()
	if err != nil {
		return nil, err
	}
	if err := j.close(); err != nil {
		return nil, err
	}
	j.header.Began, j.header.Seed = at, seed
	return events, j.open()
}

func (j *file) close() error {
	err := j.out.Flush()
	if closed := j.f.Close(); err == nil {
		err = closed
	}
	return err
}
