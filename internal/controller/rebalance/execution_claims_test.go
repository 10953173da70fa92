// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
)

// claims returns the controllers of claims in the current cluster. Their changes are written.
func (s *stage) claims() *claimcontrollers.Claims {
	c := s.cluster()
	templates := map[cluster.Name]*resourcev1.ResourceClaimTemplate{}
	for _, o := range s.objects {
		if t, ok := o.(*resourcev1.ResourceClaimTemplate); ok {
			templates[cluster.Name{Namespace: t.Namespace, Name: t.Name}] = t
		}
	}
	return &claimcontrollers.Claims{
		Cluster: c, StorageClass: admission.DefaultStorageClass(c.StorageClasses.All()),
		Template: func(namespace, name string) (*resourcev1.ResourceClaimTemplate, bool) {
			t, there := templates[cluster.Name{Namespace: namespace, Name: name}]
			return t, there
		},
		Show:     func(_ cycle.Kind, o metav1.Object) { c.Put(o); s.write(o) },
		ShowGone: func(_ cycle.Kind, o metav1.Object) { s.remove(o) },
	}
}

// controllersOf returns the writers of a pod's claims, in the role of drivers and the API server.
func (s *stage) controllersOf(c *cluster.Cluster) *claimcontrollers.Controllers {
	feed := func(e cycle.Event) {
		switch e := e.(type) {
		case cycle.Seen:
			c.Put(e.Object)
			s.write(e.Object)
		case cycle.Gone:
			s.remove(e.Object)
		}
	}
	return &claimcontrollers.Controllers{Cluster: c, Feed: feed, Now: func() metav1.Time { return metav1.NewTime(s.Now) }}
}

// release deletes or frees the claims of a removed pod.
func (s *stage) release(p *v1.Pod) {
	if !claimed(p) {
		return
	}
	claims := s.claims()
	claims.Release(p)
	s.controllersOf(claims.Cluster).Gone(claims.Cluster.Pending(p))
}

// reserve gives a pod its claimed volumes and devices on its node.
func (s *stage) reserve(p *v1.Pod, node string) {
	if !claimed(p) {
		return
	}
	c := s.cluster()
	pending, n := c.Pending(p), c.Node(node)
	for _, r := range s.profiles[0].Reservers {
		if of, ok := r.(plugins.VolumeReserver); ok {
			volumes, err := of.PodVolumes(c, pending, n)
			if err != nil {
				s.fail("%s lands on %s: %v", p.Name, node, err)
			}
			s.controllersOf(c).Bind(volumes, n)
			continue
		}
		if _, err := r.Reserve(c, pending, n); err != nil {
			s.fail("%s lands on %s: %v", p.Name, node, err)
		}
	}
	for _, claim := range c.ResourceClaims.All() {
		if s.objects[s.key(claim)] != metav1.Object(claim) {
			s.write(claim)
		}
	}
}
