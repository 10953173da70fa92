// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
)

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
	if c.sameKind(&v1.Namespace{}, &schedulingv1.PriorityClass{}, &nodev1.RuntimeClass{}) {
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
