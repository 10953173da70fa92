// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/lead"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// gather is the time for gathering changes into one frame. It is short enough to look immediate,
// and long enough to combine many changes of a rollout.
const gather = 100 * time.Millisecond

// askSchedulers is the interval between look-ups of the schedulers served by Berth, which change
// with a configuration file.
const askSchedulers = 10 * time.Second

// Watcher follows a cluster. Watches change the cluster under the mutex (changeCluster), one
// goroutine turns the changes into frames (gatherFrames), and readers wait on changed. Readers hold
// the mutex only while they copy frames or encode the state.
type Watcher struct {
	clients kubernetes.Interface

	mu      sync.Mutex
	cluster *model.Cluster
	log     log
	changed chan struct{} // closed and replaced when the log or the watches change
	state   *Frame        // encoded state as of the log's last frame; nil if it must be encoded again
	watches Watches

	wake chan struct{} // signals changes to gatherFrames
}

// Watches is the state of the connection to the API server, handed out by value.
type Watches struct {
	// Listed is set once nodes and pods have been read, so that the shown state is a cluster.
	Listed bool `json:"listed"`
	Read   int  `json:"read"` // number of nodes and pods observed until Listed, including changed ones
	// Lost maps the kinds with broken watches to the reasons.
	Lost map[string]string `json:"lost,omitempty"`
	// Since maps the same kinds to the times of their loss, in milliseconds since 1970.
	Since map[string]int64 `json:"since,omitempty"`

	nodes, pods bool
}

// New returns a watcher of the cluster of config, which is only read. It does not connect yet.
func New(config *rest.Config) (*Watcher, error) {
	// Whatever the credentials allow, this client refuses to write.
	config = snapshot.ReadOnly(config)
	config.QPS = -1 // no rate limit: the client only runs a few watches and reads pages sequentially
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Watcher{
		clients: clients, cluster: model.New(), log: log{next: 1}, changed: make(chan struct{}), wake: make(chan struct{}, 1),
		watches: Watches{Lost: map[string]string{}, Since: map[string]int64{}},
	}, nil
}

// FollowSchedulers looks up the schedulers served by Berth at intervals, until the context ends.
// Failed look-ups leave the names unchanged.
func (w *Watcher) FollowSchedulers(ctx context.Context, names func(context.Context, []*coordinationv1.Lease) ([]string, error)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		leases, err := lead.List(ctx, w.clients.CoordinationV1())
		// If Leases are unreadable, for example without permission, names can still be derived from
		// the configuration.
		if err != nil && !snapshot.Optional(err) {
			return
		}
		if served, err := names(ctx, leases); err == nil {
			w.changeCluster(func(c *model.Cluster, _ time.Time) { c.Serve(served) })
		}
	}, askSchedulers)
}

// Run follows the cluster until the context ends. It returns when all watches have ended.
func (w *Watcher) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, k := range w.kinds() {
		running.Go(func() { w.follow(ctx, &k) })
	}
	running.Go(func() { w.gatherFrames(ctx) })
	running.Wait()
}

// noteLost records the reason that a watch is broken; "" means that it is restored. Readers are
// notified immediately, without a frame.
func (w *Watcher) noteLost(resource, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watches.Lost[resource] == why {
		return
	}
	if w.watches.Lost[resource] = why; why == "" {
		delete(w.watches.Lost, resource)
		delete(w.watches.Since, resource)
	} else if w.watches.Since[resource] == 0 { // keep the time if only the reason is new
		w.watches.Since[resource] = time.Now().UnixMilli()
	}
	w.wakeReaders()
}

// wakeReaders wakes all readers. The caller holds the mutex.
func (w *Watcher) wakeReaders() {
	// A closed channel wakes any number of readers, which a send would not.
	close(w.changed)
	w.changed = make(chan struct{})
}

// changeCluster changes the cluster, and wakes gatherFrames.
func (w *Watcher) changeCluster(do change) {
	w.mu.Lock()
	do(w.cluster, time.Now())
	w.mu.Unlock()
	pacing.Signal(w.wake)
}

// gatherFrames combines changes into frames, at most as often as readers can draw them. The first
// change after a pause is shown immediately; the following ones wait for the next frame.
func (w *Watcher) gatherFrames(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		w.makeFrame(ctx)
		pause.Reset(gather)
	}
}

// makeFrame makes the next frame. Before nodes and pods are listed it only wakes readers, which
// show the progress of reading.
func (w *Watcher) makeFrame(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.watches.nodes || !w.watches.pods {
		w.wakeReaders() // report the number of objects read
		return
	}
	delta := w.cluster.Changes(time.Now())
	if !w.watches.Listed {
		w.beginLog()
		return
	}
	// The remaining changes make another frame after the pause.
	if w.cluster.More() {
		pacing.Signal(w.wake)
	}
	if delta == nil {
		return
	}
	data, err := json.Marshal(delta)
	if err != nil { // cannot happen for plain data
		klog.FromContext(ctx).Error(err, "Change not encoded")
		return
	}
	w.log.addFrame(data)
	// The state is encoded again on a reader's request, and then shared by all readers.
	w.state = nil
	w.wakeReaders()
}

// beginLog makes the listed objects the initial state of the log. It is called once, with the mutex
// held.
func (w *Watcher) beginLog() {
	for w.cluster.More() {
		w.cluster.Changes(time.Now())
	}
	// From here on readers get frames, and requests are served.
	w.watches.Listed = true
	w.log.addFrame([]byte("{}")) // never sent: a new reader gets the state
	w.wakeReaders()
}

// Read returns the changes after the given frame number: frames of the log, or the whole state if
// the log does not reach back that far. Without changes, frames is empty. changed is closed at the
// next change. watches is the state of the connection to the API server. A new reader passes 0.
func (w *Watcher) Read(after uint64) (frames []Frame, watches Watches, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	watches = w.watches
	// The maps continue to change under the mutex.
	watches.Lost, watches.Since = maps.Clone(w.watches.Lost), maps.Clone(w.watches.Since)
	if !watches.Listed {
		return nil, watches, w.changed
	}
	watches.Read = 0 // readers would be informed of the watches with each change
	if frames, ok := w.log.framesAfter(after); ok && after > 0 {
		return frames, watches, w.changed
	}

	if w.state == nil {
		data, err := json.Marshal(w.cluster.State(time.Now()))
		if err != nil {
			return nil, watches, w.changed
		}
		w.state = &Frame{Seq: w.log.next - 1, Fresh: true, Data: data}
	}
	return []Frame{*w.state}, watches, w.changed
}

// Listed waits until nodes and pods have been read once and returns true, or false if the context
// ends first. It is safe for any number of goroutines.
func (w *Watcher) Listed(ctx context.Context) bool {
	for {
		w.mu.Lock()
		listed, changed := w.watches.Listed, w.changed
		w.mu.Unlock()
		if listed {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// Look calls look with the current cluster. Watches wait during the call.
func (w *Watcher) Look(look func(c *model.Cluster)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	look(w.cluster)
}

// Frame is a state or a change, encoded for sending.
type Frame struct {
	Seq   uint64
	Fresh bool
	Data  []byte // a model.Delta as JSON
}

// The log holds the changes of the last minutes: after a connection loss of up to that length, a
// page continues at the same point.
const (
	mostFrames = 3000
	mostBytes  = 16 << 20
)

// log holds the last frames, in order and without a gap. It is guarded by the Watcher's mutex.
type log struct {
	frames []Frame
	bytes  int
	next   uint64 // number of the next frame; the first frame is 1
}

// addFrame adds a frame, and drops the oldest ones if the frames are too many or too large. The
// newest is always kept.
func (l *log) addFrame(data []byte) {
	l.frames = append(l.frames, Frame{Seq: l.next, Data: data})
	l.bytes += len(data)
	l.next++
	drop := 0
	for len(l.frames)-drop > mostFrames || l.bytes > mostBytes && len(l.frames)-drop > 1 {
		l.bytes -= len(l.frames[drop].Data)
		drop++
	}
	l.frames = slices.Delete(l.frames, 0, drop)
}

// framesAfter returns the frames after a number, and whether they are contiguous with it. The
// frames are shared by all readers, and must not be changed.
func (l *log) framesAfter(seq uint64) (frames []Frame, ok bool) {
	// Without frames, first is the number of the next frame.
	first := l.next - uint64(len(l.frames))
	if seq >= l.next || seq+1 < first {
		return nil, false
	}
	return slices.Clone(l.frames[seq+1-first:]), true
}
