package live

import (
	"context"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/eviction"
)

// nodeReads lets pods of one node share readings of it. Who asks is never given
// a reading that began before: while one is under way, those who come share the
// one that follows it.
type nodeReads struct {
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

func (r *nodeReads) read(ctx context.Context, client rest.Interface, name string) (*eviction.Node, error) {
	r.mu.Lock()
	last := r.reads[name]
	if last == nil || last.begun {
		read := &nodeRead{after: last, done: make(chan struct{})}
		r.reads[name] = read
		r.mu.Unlock()
		r.carryOut(ctx, client, name, read)
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

func (r *nodeReads) carryOut(ctx context.Context, client rest.Interface, name string, read *nodeRead) {
	if read.after != nil {
		select {
		case <-read.after.done:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	read.begun, read.after = true, nil
	r.mu.Unlock()

	var node v1.Node
	if read.err = client.Get().Resource("nodes").Name(name).MaxRetries(0).Do(ctx).Into(&node); read.err == nil {
		seen := eviction.NodeOf(&node)
		read.node = &seen
	}

	r.mu.Lock()
	if r.reads[name] == read {
		delete(r.reads, name)
	}
	r.mu.Unlock()
	close(read.done)
}

func isStatus(err error, status *apierrors.APIStatus) bool { return errors.As(err, status) }
