// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// backlog is the number of changes buffered per lane. A lane with a full backlog delays the
// watches.
const backlog = 4096

// follower follows all kinds that decisions depend on, and passes the changes to every lane.
type follower struct {
	client *snapshot.Client
	lanes  []*lane
	tasks  chan func(*lane) // taken by any free lane

	mu      sync.Mutex
	kinds   int // number of kinds
	listed  map[string]bool
	missing map[string]string // kinds that cannot be read, with the reasons
	ready   chan struct{}     // closed when every kind is listed or unreadable
}

// newFollower returns a follower with this number of lanes.
func newFollower(client *snapshot.Client, lanes int) *follower {
	f := &follower{client: client, tasks: make(chan func(*lane)), listed: map[string]bool{}, missing: map[string]string{},
		ready: make(chan struct{}), kinds: len(snapshot.Kinds())}
	for range lanes {
		f.lanes = append(f.lanes, newLane())
	}
	return f
}

// run follows the cluster until the context ends.
func (f *follower) run(ctx context.Context) {
	var running sync.WaitGroup
	for _, l := range f.lanes {
		running.Go(func() { l.run(ctx, f.tasks) })
	}
	for _, k := range snapshot.Kinds() {
		s := &sink{follower: f, ctx: ctx, kind: k, there: map[cluster.Name]metav1.Object{}}
		source := f.client.Source(k)
		list := source.List
		source.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			page, err := list(ctx, o)
			if err != nil && !k.Needed && snapshot.Optional(err) {
				f.noteListed(k, err)
			}
			return page, err
		}
		running.Go(func() { feed.Run(ctx, source, s.sink()) })
	}
	running.Wait()
}

// noteListed records that a kind was listed, or why it cannot be read.
func (f *follower) noteListed(k snapshot.Kind, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		delete(f.missing, k.Resource)
	case apierrors.IsForbidden(err):
		f.missing[k.Resource] = err.Error()
	}
	if f.listed[k.Resource] = true; len(f.listed) < f.kinds {
		return
	}
	select {
	case <-f.ready:
	default:
		close(f.ready)
	}
}

// unreadable returns the kinds that cannot be read, with the reasons.
func (f *follower) unreadable() (lines []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(f.missing)) {
		lines = append(lines, kind+": "+f.missing[kind])
	}
	return lines
}

// do calls task in a free lane, and waits until it returns.
func (f *follower) do(ctx context.Context, task func(*lane)) error {
	done := make(chan struct{})
	select {
	case f.tasks <- func(l *lane) { defer close(done); task(l) }:
		<-done // a task ends with its context
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sink passes the objects of one kind to the lanes. Only the goroutine of its feed uses it.
type sink struct {
	*follower
	ctx  context.Context
	kind snapshot.Kind

	there  map[cluster.Name]metav1.Object // the last known objects
	listed map[cluster.Name]bool          // objects of the list in progress; nil between lists
}

func (s *sink) sink() feed.Sink {
	return feed.Sink{
		Listing: func() { s.listed = map[cluster.Name]bool{} },
		Listed: func() {
			for name, object := range s.there {
				if !s.listed[name] {
					s.send(object, true)
				}
			}
			s.listed = nil
			s.noteListed(s.kind, nil)
		},
		Seen: func(o runtime.Object) { s.send(o.(metav1.Object), false) },
		Gone: func(o runtime.Object) { s.send(o.(metav1.Object), true) },
	}
}

// send passes a change to every lane. It waits for a lane with a full backlog.
func (s *sink) send(object metav1.Object, gone bool) {
	name := cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
	if s.listed != nil && !gone {
		s.listed[name] = true
	}
	if known := s.there[name]; known != nil && !gone && known.GetResourceVersion() == object.GetResourceVersion() {
		return // listed again, unchanged
	}
	if object.SetManagedFields(nil); gone {
		delete(s.there, name)
	} else {
		s.there[name] = object
	}
	for _, l := range s.lanes {
		select {
		case l.changes <- change{object: object, gone: gone}:
		case <-s.ctx.Done():
			return
		}
	}
}

// setProfiles replaces the profiles of every lane, after the changes that arrived before.
func (f *follower) setProfiles(ctx context.Context, profiles []*plugins.Profile) {
	for _, l := range f.lanes {
		select {
		case l.changes <- change{profiles: profiles}:
		case <-ctx.Done():
		}
	}
}

// change is the new state of an object, or its deletion, or new profiles.
type change struct {
	object   metav1.Object
	gone     bool
	profiles []*plugins.Profile
}

// sameKind reports whether the object is of one of the kinds.
func (c change) sameKind(kinds ...metav1.Object) bool {
	for _, k := range kinds {
		if reflect.TypeOf(k) == reflect.TypeOf(c.object) {
			return true
		}
	}
	return false
}
