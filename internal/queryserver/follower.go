// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"context"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
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

// lane processes questions in a World, one at a time. Its goroutine owns all fields but changes. A
// lane of a follower follows the watches; the lane of a fork does not.
type lane struct {
	changes  chan change
	world    *world.World
	profiles []*plugins.Profile
	deciders map[string]*decider // by scheduler name
	catalog  *admission.Catalog  // nil if it must be read again
}

// decider decides about the pods of a profile.
type decider struct {
	*decide.Decider
	profile *plugins.Profile
}

// newLane returns a lane of an empty world.
func newLane() *lane { return &lane{changes: make(chan change, backlog), world: world.Open(nil)} }

// run applies changes and performs tasks until the context ends. A task sees all changes that
// arrived before it.
func (l *lane) run(ctx context.Context, tasks <-chan func(*lane)) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-l.changes:
			l.apply(c)
		case task := <-tasks:
			for range len(l.changes) {
				l.apply(<-l.changes)
			}
			task(l)
		}
	}
}

func (l *lane) apply(c change) {
	if c.profiles != nil {
		l.setProfiles(c.profiles)
		return
	}
	switch c.object.(type) {
	case *v1.Namespace, *schedulingv1.PriorityClass, *nodev1.RuntimeClass:
		l.catalog = nil
	}
	if c.gone {
		l.world.Delete(c.object)
	} else {
		l.world.Put(c.object)
	}
}

// setProfiles replaces the profiles. Plugins hold the state of one cluster, so each lane needs a
// fresh copy.
func (l *lane) setProfiles(profiles []*plugins.Profile) {
	l.profiles, l.deciders = profiles, map[string]*decider{}
	for _, p := range profiles {
		if fresh, err := p.Fresh(); err == nil { // the arguments were accepted before
			l.deciders[p.SchedulerName] = &decider{decide.New(l.world.Cluster(), fresh, 1), fresh}
		}
	}
}

// fork returns a lane with an independent copy of the world.
func (l *lane) fork() *lane { return &lane{world: l.world.Fork(), profiles: l.profiles} }

// admit returns the pod in the form stored by the API server.
func (l *lane) admit(p *v1.Pod) (*v1.Pod, error) {
	if l.catalog == nil {
		l.catalog = admission.NewCatalog(slices.Collect(world.All[*v1.Namespace](l.world)),
			slices.Collect(world.All[*schedulingv1.PriorityClass](l.world)), slices.Collect(world.All[*nodev1.RuntimeClass](l.world)))
	}
	return admission.Create(admission.Config{}, l.catalog, p)
}

// place decides about a new pod, and places it with its claims. Without a node it returns the
// reasons.
func (l *lane) place(object *v1.Pod) (*cluster.Node, *decide.Failure, error) {
	d := l.deciders[object.Spec.SchedulerName]
	l.claims().MakeFor(object)
	p := l.world.Cluster().Pending(object)
	decision := d.Decide(p)
	switch {
	case decision.Err != nil:
		return nil, nil, decision.Err
	case decision.Node == nil:
		return nil, d.Diagnose(p), nil
	}
	for _, r := range d.profile.Reservers {
		volumes, ofVolumes := r.(plugins.VolumeReserver)
		if !ofVolumes {
			if err := l.world.Reserve(r, p, decision.Node); err != nil {
				return nil, nil, err
			}
			continue
		}
		chosen, err := volumes.PodVolumes(l.world.Cluster(), p, decision.Node)
		if err != nil {
			return nil, nil, err
		}
		controllers := claimcontrollers.Controllers{Cluster: l.world.Cluster(), Feed: l.feed, Now: metav1.Now}
		controllers.Bind(chosen, decision.Node)
	}
	l.world.Place(object, p, decision.Node)
	return decision.Node, nil, nil
}

// claims returns the simulated controllers of new pods' claims.
func (l *lane) claims() *claimcontrollers.Claims {
	c := l.world.Cluster()
	return &claimcontrollers.Claims{
		Cluster: c, StorageClass: admission.DefaultStorageClass(c.StorageClasses.All()),
		Template: func(namespace, name string) (*resourcev1.ResourceClaimTemplate, bool) {
			return world.Get[*resourcev1.ResourceClaimTemplate](l.world, namespace, name)
		},
		Show:     func(_ cycle.Kind, object metav1.Object) { l.world.Put(object) },
		ShowGone: func(_ cycle.Kind, object metav1.Object) { l.world.Delete(object) },
	}
}

// feed applies the writes of simulated controllers.
func (l *lane) feed(e cycle.Event) {
	switch e := e.(type) {
	case cycle.Seen:
		l.world.Put(e.Object)
	case cycle.Gone:
		l.world.Delete(e.Object)
	}
}
