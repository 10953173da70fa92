// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

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

// follower follows all kinds that decisions depend on, and applies the changes to every lane.
type follower struct {
	client *snapshot.Client
	lanes  []*lane
	free   chan *lane // lanes without a question

	mu      sync.Mutex
	kinds   int // number of kinds
	listed  map[string]bool
	missing map[string]string    // kinds that cannot be read, with the reasons
	lost    map[string]time.Time // kinds without a watch, with the time of its end
	ready   chan struct{}        // closed when every kind is listed or unreadable
}

// newFollower returns a follower with this number of lanes.
func newFollower(client *snapshot.Client, lanes int) *follower {
	f := &follower{client: client, free: make(chan *lane, lanes), listed: map[string]bool{}, missing: map[string]string{},
		lost: map[string]time.Time{}, ready: make(chan struct{}), kinds: len(snapshot.Kinds())}
	for range lanes {
		l := &lane{world: world.Open(nil)}
		f.lanes = append(f.lanes, l)
		f.free <- l
	}
	return f
}

// run follows the cluster until the context ends.
func (f *follower) run(ctx context.Context) {
	var running sync.WaitGroup
	for _, k := range snapshot.Kinds() {
		s := &sink{follower: f, kind: k, there: map[cluster.Name]metav1.Object{}, models: models{}}
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

// shortLoss is the time within which an interrupted watch usually continues. Answers are partial
// after a longer interruption.
const shortLoss = 3 * time.Second

// unreadable returns the kinds that cannot be read or followed, with the reasons.
func (f *follower) unreadable() (lines []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(f.missing)) {
		lines = append(lines, kind+": "+f.missing[kind])
	}
	for _, kind := range slices.Sorted(maps.Keys(f.lost)) {
		if since := f.lost[kind]; f.missing[kind] == "" && time.Since(since) > shortLoss {
			lines = append(lines, kind+": no changes have arrived since "+since.UTC().Format(time.RFC3339))
		}
	}
	return lines
}

// do calls task with a free lane. A task must end with its context.
func (f *follower) do(ctx context.Context, task func(*lane)) error {
	select {
	case l := <-f.free:
		defer func() { f.free <- l }()
		l.mu.Lock()
		defer l.mu.Unlock()
		task(l)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sink passes the objects of one kind to the lanes. Only the goroutine of its feed uses it.
type sink struct {
	*follower
	kind snapshot.Kind

	there  map[cluster.Name]metav1.Object // the last known objects
	models models
	listed map[cluster.Name]bool // objects of the list in progress; nil between lists
	read   bool                  // whether a list has succeeded
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
			s.listed, s.read = nil, true
			s.noteListed(s.kind, nil)
		},
		Seen: func(o runtime.Object) { s.send(o.(metav1.Object), false) },
		Gone: func(o runtime.Object) { s.send(o.(metav1.Object), true) },
		Lost: s.noteLost,
		Back: s.noteBack,
	}
}

// noteLost records the end of the watch of a kind that has been listed.
func (s *sink) noteLost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read && s.lost[s.kind.Resource].IsZero() {
		s.lost[s.kind.Resource] = time.Now()
	}
}

// noteBack undoes noteLost.
func (s *sink) noteBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lost, s.kind.Resource)
}

// send applies a change to every lane. It waits for the questions in progress.
func (s *sink) send(object metav1.Object, gone bool) {
	name := cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
	if s.listed != nil && !gone {
		s.listed[name] = true
	}
	known := s.there[name]
	if known != nil && !gone && known.GetResourceVersion() == object.GetResourceVersion() {
		return // listed again, unchanged
	}

	object.SetManagedFields(nil)
	if p, ok := object.(*v1.Pod); ok {
		earlier, _ := known.(*v1.Pod)
		if gone {
			p = nil
		}
		s.models.share(p, earlier)
	}
	if gone {
		delete(s.there, name)
	} else {
		s.there[name] = object
	}
	for _, l := range s.lanes {
		l.apply(object, gone)
	}
}

// lane is a World that answers questions, one at a time. The lane of a fork does not follow the
// watches.
type lane struct {
	mu       sync.Mutex // held by questions, and while a change is applied
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

// apply applies the new state of an object, or its deletion.
func (l *lane) apply(object metav1.Object, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch object.(type) {
	case *v1.Namespace, *schedulingv1.PriorityClass, *nodev1.RuntimeClass:
		l.catalog = nil
	}
	if gone {
		l.world.Delete(object)
	} else {
		l.world.Put(object)
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
