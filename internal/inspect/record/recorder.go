// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// Options selects the objects to record, and bounds the recording's size.
type Options struct {
	Dir string
	// For is the duration of the recording once everything is listed; 0 means until the context
	// ends.
	For time.Duration
	// Once records the current objects, without changes.
	Once bool
	// MaxBytes bounds the total size of the sessions; the oldest are removed. The newest is always
	// kept. 0 means 1 GiB.
	MaxBytes int64
	// Every is the interval at which the objects in the folder are updated and buffered changes are
	// written. A crash of the process loses at most the changes of one interval. 0 means a minute.
	Every time.Duration
	// Progress, if set, is called with the number of objects and changes at each update. It must
	// not block, because the watches wait for it.
	Progress func(objects, changes int)
}

// recorder holds the current objects. Several watches write to it concurrently.
//
//	DIR/recording.index           the content, and the time until which it is valid
//	DIR/pods.json, nodes.json ... the current objects, as read by -f
//	DIR/sessions/BEGAN/*.json     the objects at the beginning of a session
//	DIR/sessions/BEGAN/changes-*  the changes since, one per line
//
// The objects are kept as JSON, as they are written to files. Comparing the JSON reveals changes.
type recorder struct {
	options Options
	client  *snapshot.Client
	release func() // unlocks the folder; nil until something is written to it

	mu sync.Mutex
	// mu guards the fields below, except for ready.
	index *Index
	kinds map[string]map[string]json.RawMessage // by resource and name
	// listed holds the served kinds; the value reports whether the kind's list is complete.
	listed  map[string]bool
	missing []string         // unreadable kinds, as in Session.Missing
	opened  metav1.MicroTime // beginning of the first session
	changes *changes         // changes of the session; nil before the first session, whose objects include all earlier changes
	// full is the number of bytes of changes at which the session ends, and counted is the total
	// number of recorded changes.
	full    int64
	counted int
	// failed is the first error of a write. It ends the recording, and the next checkpoint returns
	// it.
	failed error
	ready  chan struct{} // closed once everything has been listed
}

// Run records until the context ends, or for Options.For. It then returns nil, unless the context
// ends while a list is still incomplete. Only one recording at a time writes to a folder.
func Run(ctx context.Context, client *snapshot.Client, o Options) error {
	o.MaxBytes, o.Every = cmp.Or(o.MaxBytes, 1<<30), cmp.Or(o.Every, time.Minute)
	r := &recorder{options: o, client: client, kinds: map[string]map[string]json.RawMessage{},
		listed: map[string]bool{}, ready: make(chan struct{})}
	var err error
	// Detect an unusable folder before querying the cluster.
	if r.release, err = claimFolder(o.Dir); err != nil {
		return err
	}

	defer func() {
		if r.release != nil {
			r.release()
		}
	}()

	if err := r.openIndex(ctx); err != nil {
		return err
	}
	if o.Once {
		return r.recordOnce(ctx)
	}
	return r.followKinds(ctx)
}

// openIndex reads the index of a recording of the same cluster, or begins a new one. It does not
// write.
func (r *recorder) openIndex(ctx context.Context) error {
	cluster, err := r.client.ClusterID(ctx)
	if err != nil {
		return err
	}

	index, err := ReadIndex(r.options.Dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		index = &Index{APIVersion: simulate.APIVersion, Kind: Kind, Cluster: cluster}
	case err != nil:
		return err
	case index.Cluster != cluster:
		return fmt.Errorf("%s is a recording of another cluster: name another folder", r.options.Dir)
	}

	if n := len(index.Sessions); n > 0 {
		// The last recorder may have been killed after its last checkpoint.
		index.Sessions[n-1].extendEnd(r.options.Dir)
	}
	index.Source.From = r.client.Host()
	r.index, r.opened = index, now()
	return nil
}

// now returns the time in the format of recordings: in UTC, with microseconds.
func now() metav1.MicroTime { return metav1.NewMicroTime(time.Now().UTC()) }

// recordOnce records the current objects. It omits kinds not served by the cluster.
func (r *recorder) recordOnce(ctx context.Context) error {
	for _, k := range snapshot.Kinds() {
		version, err := r.client.ListAll(ctx, k, func(object metav1.Object) { r.setObject(k, object) })
		if err != nil && (k.Needed || !snapshot.Optional(err)) {
			return fmt.Errorf("list %s: %w", k.Resource, err)
		}
		if err != nil {
			r.leaveOut(k, err)
		}
		// Use the version of the last list, which is the newest.
		r.index.Source.ResourceVersion = cmp.Or(version, r.index.Source.ResourceVersion)
	}
	return r.beginRecording()
}

// leaveOut records an unreadable kind as missing. It ignores kinds that are not served, because
// they have no objects, and pod groups, because few clusters have them and few roles permit reading
// them.
func (r *recorder) leaveOut(k snapshot.Kind, err error) {
	if !apierrors.IsNotFound(err) && k.GroupVersion != schedulingv1beta1.SchemeGroupVersion {
		r.missing = append(r.missing, fmt.Sprintf("%s: %v", k.Resource, err))
	}
}

// errEarly is the error if the context ends before everything has been listed. A recording with
// some kinds only would give wrong results.
var errEarly = errors.New("ended before everything was listed: nothing was written")

// followKinds lists and watches every kind. Its goroutines have ended when it returns.
func (r *recorder) followKinds(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var served []snapshot.Kind
	for _, k := range snapshot.Kinds() {
		// Detect unserved and forbidden kinds before watching: a watch would retry forever.
		if _, err := r.client.List(ctx, k, metav1.ListOptions{Limit: 1}); err != nil {
			if ctx.Err() != nil {
				return errEarly
			}
			if k.Needed || !snapshot.Optional(err) {
				return fmt.Errorf("list %s: %w", k.Resource, err)
			}
			r.leaveOut(k, err)
			continue
		}
		r.listed[k.Resource] = false // no other goroutine runs yet
		served = append(served, k)
	}
	for _, k := range served {
		running.Go(func() { feed.Run(ctx, r.client.Source(k), (&sink{recorder: r, kind: k}).sink()) })
	}
	select {
	case <-r.ready:
	case <-ctx.Done():
		return errEarly
	}
	if err := r.beginRecording(); err != nil {
		return err
	}
	// From here on the folder is valid, and is updated periodically.
	ticker := time.NewTicker(r.options.Every)
	defer ticker.Stop()
	if r.options.For > 0 {
		defer time.AfterFunc(r.options.For, cancel).Stop()
	}
	for {
		select {
		case <-ticker.C:
			if err := r.writeCheckpoint(); err != nil {
				return err
			}
		case <-ctx.Done():
			return r.endRecording()
		}
	}
}

// beginRecording begins the first session and writes its objects. Callers must have listed
// everything before, so that an unreadable cluster leaves no folder behind.
func (r *recorder) beginRecording() error {
	if r.release == nil {
		var err error
		if r.release, err = createFolder(r.options.Dir); err != nil {
			return err
		}
	}
	r.mu.Lock()
	err := errors.Join(r.sweepSessions(), r.beginSession(r.opened))
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.writeCheckpoint()
}

// sweepSessions removes session folders missing from the index. They belong to recorders that were
// killed before they wrote the index. The caller must hold r.mu.
func (r *recorder) sweepSessions() error {
	for _, folder := range listSessions(r.options.Dir) {
		if slices.ContainsFunc(r.index.Sessions, func(s Session) bool { return s.Folder == folder }) {
			continue
		}
		if err := removeInside(r.options.Dir, folder); err != nil {
			return err
		}
	}
	return nil
}

// beginSession begins a session with the current objects; later observations are changes. The
// caller must hold r.mu, and write the index.
func (r *recorder) beginSession(began metav1.MicroTime) error {
	s := Session{Folder: filepath.Join(sessionsFolder, sessionName(began.Time)), Began: began, Until: began, Missing: r.missing}
	if err := inside(r.options.Dir, func(root *os.Root) error { return root.MkdirAll(s.Folder, 0o700) }); err != nil {
		return err
	}
	if err := writeLists(r.options.Dir, s.Folder, r.listObjects()); err != nil {
		return err
	}
	sizes, err := sizesOf(r.options.Dir, s.Folder)
	if err != nil {
		return err
	}
	s.Files = slices.Sorted(maps.Keys(sizes))
	const parts = 8 // a session is full when its changes exceed both this fraction of the limit and the size of its objects
	r.full = max(r.options.MaxBytes/parts, sumSizes(sizes))
	r.changes = &changes{dir: r.options.Dir, name: filepath.Join(s.Folder, changesPrefix+"000001"+changesSuffix)}
	r.index.Sessions = append(r.index.Sessions, s)
	return r.makeRoom()
}

// lastSession returns the session being recorded, which must exist. The pointer is valid until a
// session is added or removed. The caller must hold r.mu.
func (r *recorder) lastSession() *Session { return &r.index.Sessions[len(r.index.Sessions)-1] }

// turnSession ends a full session and begins the next one. Room is made by removing whole sessions,
// so that any time in the remaining sessions can be shown. The next session begins where the
// previous one ends, without a gap. The caller must hold r.mu.
func (r *recorder) turnSession() error {
	if err := r.changes.close(); err != nil {
		return err
	}
	at := now()
	r.lastSession().noteWritten(at, r.changes)
	if err := r.beginSession(at); err != nil {
		return err
	}
	return r.writeIndex()
}

// makeRoom removes the oldest sessions while the total, including the newest session's future
// changes, is too large. The rest stays complete: sessions do not depend on earlier ones. The
// caller must hold r.mu.
func (r *recorder) makeRoom() error {
	sizes, total := make([]int64, len(r.index.Sessions)), r.full
	for i, s := range r.index.Sessions {
		files, err := sizesOf(r.options.Dir, s.Folder)
		if err != nil {
			return err
		}
		sizes[i] = sumSizes(files)
		total += sizes[i]
	}
	first := 0
	for ; first < len(sizes)-1 && total > r.options.MaxBytes; first++ {
		total -= sizes[first]
	}
	if first == 0 {
		return nil
	}
	gone := r.index.Sessions[:first]
	r.index.Sessions = slices.Clone(r.index.Sessions[first:])
	if err := r.writeIndex(); err != nil { // write the index first, so that it never names removed sessions
		return err
	}
	for _, s := range gone {
		// The index may be of foreign origin. Remove only folders created by a recorder.
		if filepath.Dir(s.Folder) != sessionsFolder {
			continue
		}
		if err := removeInside(r.options.Dir, s.Folder); err != nil {
			return err
		}
	}
	return nil
}

// endRecording writes a last checkpoint and closes the file of changes.
func (r *recorder) endRecording() error {
	err := r.writeCheckpoint()
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(err, r.changes.close())
}

// setObject records an object, unless it is unchanged. It does not modify the object, which may be
// shared with a cache.
func (r *recorder) setObject(k snapshot.Kind, object metav1.Object) {
	copied := object.(runtime.Object).DeepCopyObject()
	Slim(copied.(metav1.Object))
	copied.GetObjectKind().SetGroupVersionKind(k.GroupVersion.WithKind(k.Kind))
	text, err := json.Marshal(copied)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed = err
		return
	}
	objects := r.kinds[k.Resource]
	if objects == nil {
		objects = map[string]json.RawMessage{}
		r.kinds[k.Resource] = objects
	}
	name := object.GetNamespace() + "/" + object.GetName()
	// A relist shows every object again.
	if string(objects[name]) == string(text) {
		return
	}
	objects[name] = text
	// Do not record changes of Leases, because every node renews its Lease every ten seconds.
	if k.Resource != "leases" {
		r.appendChange("Set", text)
	}
}

// deleteObject records that an object was deleted. The object may be unknown.
func (r *recorder) deleteObject(k snapshot.Kind, namespace, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.kinds[k.Resource], namespace+"/"+name)
	text, err := json.Marshal(map[string]any{
		"apiVersion": k.GroupVersion.String(), "kind": k.Kind, "metadata": map[string]string{"namespace": namespace, "name": name},
	})
	// Marshaling a name never fails.
	if err == nil {
		r.appendChange("Delete", text)
	}
}

// appendChange appends a change. Before the first session it does nothing, because the session's
// objects will include the change. The caller must hold r.mu.
func (r *recorder) appendChange(kind string, object json.RawMessage) {
	if r.changes == nil || r.failed != nil {
		return
	}
	r.counted++
	r.failed = r.changes.addChange(&Change{At: metav1.NowMicro(), Type: kind, Object: object})
	if r.failed == nil && r.changes.size > r.full {
		r.failed = r.turnSession()
	}
}
