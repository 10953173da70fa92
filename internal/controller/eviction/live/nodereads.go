package live

import (
	"context"
	"sync"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// nodeReads lets pods of one node share reads of it. No caller gets the result of a read that began
// before the call: while one is in flight, further callers share the next one.
type nodeReads struct {
	get   func(ctx context.Context, name string) (*eviction.Node, error)
	mu    sync.Mutex
	reads map[string]*nodeRead // the last one asked for, by node
}

type nodeRead struct {
	begun bool // under mu
	after *nodeRead
	done  chan struct{}
	node  *eviction.Node // once done
	err   error
}

func (r *nodeReads) read(ctx context.Context, name string) (*eviction.Node, error) {
	r.mu.Lock()
	last := r.reads[name]
	if last == nil || last.begun {
		read := &nodeRead{after: last, done: make(chan struct{})}
		r.reads[name] = read
		r.mu.Unlock()
		r.carryOut(ctx, name, read)
		return read.node, read.err
	}
	r.mu.Unlock()
	select {
	case <-last.done:
		return last.node, last.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *nodeReads) carryOut(ctx context.Context, name string, read *nodeRead) {
	if read.after != nil {
		select {
		case <-read.after.done:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	read.begun, read.after = true, nil
	r.mu.Unlock()

	read.node, read.err = r.get(ctx, name)

	r.mu.Lock()
	if r.reads[name] == read {
		delete(r.reads, name)
	}
	r.mu.Unlock()
	close(read.done)
}
