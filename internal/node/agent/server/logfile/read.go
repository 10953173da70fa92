package logfile

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// Options are those of kubectl logs.
type Options struct {
	// Tail is how many of the existing lines are shown; nil: all.
	Tail *int64
	// Limit is after how many bytes to stop; nil: never.
	Limit *int64
	// Since leaves out what was written before it.
	Since time.Time
	// Follow continues until the container has ended.
	Follow bool
	// Timestamps are printed before every line.
	Timestamps bool
	// Only leaves out the other stream; empty: both are shown.
	Only Stream
	// Running reports whether the container still writes. It is called only when following.
	Running func(context.Context) (bool, error)
}

// Writer is where lines go. What was written may wait until it is flushed.
type Writer interface {
	io.Writer
	Flush() error
}

const (
	// poll is how often a file that is followed is looked at: two system calls, and no inotify
	// instance, of which a machine has 128 by default.
	poll = 100 * time.Millisecond
	// askEvery is how often the runtime is asked whether a silent container still runs.
	askEvery = time.Second
	// settle is how long the old file is still read after a rotation if nothing appears in the new
	// one: the runtime opens the new one first, then closes the old one.
	settle = time.Second
)

// errEnough means that the limit of bytes has been reached.
var errEnough = errors.New("enough")

// Read writes the log at path, which must be beneath root, until it ends: at the end of the file
// or, when following, when the container has ended, the context has, or the writer accepts no more.
func Read(ctx context.Context, root, path string, o Options, w Writer) error {
	place, err := locate(root, path)
	if err != nil {
		return err
	}
	defer place.close()
	f, err := place.open()
	if err != nil {
		return err
	}
	r := &reader{options: o, place: place, out: printer{options: o, w: w}, lines: newScanner(f)}
	defer func() { _ = r.lines.file.Close() }()
	if err := r.start(); err != nil {
		return err
	}
	err = r.run(ctx)
	if err == errEnough {
		err = nil
	}
	return errors.Join(err, w.Flush())
}

// reader reads one file, then the one that took its name.
type reader struct {
	options Options
	place   *place
	lines   *scanner
	out     printer
}

// start goes to the first line that is to be shown.
func (r *reader) start() error {
	size, err := r.lines.size()
	if err != nil {
		return err
	}
	if r.options.Tail != nil {
		begin, err := tail(r.lines.file, size, *r.options.Tail)
		if err != nil {
			return err
		}
		r.lines.offset = begin
	}
	if !r.options.Follow {
		// What is written from now on is not shown, or a busy program would never let this end.
		r.lines.until = &size
	}
	return nil
}

func (r *reader) run(ctx context.Context) error {
	if _, err := r.all(); err != nil {
		return err
	}
	if !r.options.Follow {
		return r.out.rest(r.lines.rest())
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	// The first flush comes even if nothing was written, so that the reader knows that it has
	// begun.
	wrote, asked := true, time.Now()
	for {
		if wrote {
			if err := r.out.w.Flush(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		var err error
		if wrote, err = r.all(); err != nil {
			return err
		}
		if next := r.place.replaced(r.lines.file); next != nil {
			if err := r.turn(ctx, next, ticker); err != nil {
				return err
			}
			wrote = true
			continue
		}
		if wrote || time.Since(asked) < askEvery {
			continue
		}
		asked = time.Now()
		running, err := r.options.Running(ctx)
		if err != nil {
			return err
		}
		if !running {
			return r.last()
		}
	}
}

// last prints what was written between the last poll and the end of the container.
func (r *reader) last() error {
	if _, err := r.all(); err != nil {
		return err
	}
	if next := r.place.replaced(r.lines.file); next != nil {
		r.use(next)
		if _, err := r.all(); err != nil {
			return err
		}
	}
	return r.out.rest(r.lines.rest())
}

// turn reads the old file to its end, which is final once the runtime writes to the new one, and
// continues with that.
func (r *reader) turn(ctx context.Context, next *os.File, ticker *time.Ticker) error {
	seen := time.Now()
	for {
		// The size of the new file is read before the old file: once something is in the new one,
		// the old one is complete.
		info, err := next.Stat()
		if err != nil {
			_ = next.Close()
			return err
		}
		wrote, err := r.all()
		if err != nil {
			_ = next.Close()
			return err
		}
		if !wrote && (info.Size() > 0 || time.Since(seen) > settle) {
			r.use(next)
			return nil
		}
		if err := r.out.w.Flush(); err != nil {
			_ = next.Close()
			return err
		}
		select {
		case <-ctx.Done():
			_ = next.Close()
			return nil
		case <-ticker.C:
		}
	}
}

func (r *reader) use(next *os.File) {
	_ = r.lines.file.Close()
	r.lines = newScanner(next)
}

// all prints all complete lines, and reports whether there were any.
func (r *reader) all() (wrote bool, err error) {
	if err := r.lines.truncated(); err != nil {
		return false, err
	}
	for {
		line, continued, err := r.lines.next()
		if err == io.EOF {
			return wrote, nil
		}
		if err != nil {
			return wrote, err
		}
		wrote = true
		if err := r.out.line(line, continued); err != nil {
			return wrote, err
		}
	}
}
