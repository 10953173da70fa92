// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
)

// claiming makes, binds and releases the claims of pods that are added to or removed from a world.
// All of its changes can be undone.
//
// The node of a successor depends on its volumes: a StatefulSet's successor takes over the claims
// of its victim, bound to a zone, while an ephemeral volume gets a new, unbound claim. The
// stand-ins for the controllers (package claimcontrollers) make and bind claims like
// kube-controller-manager and a provisioner.
type claiming struct {
	world       *objects.World
	claims      claimcontrollers.Claims
	controllers claimcontrollers.Controllers
	recorded    []metav1.Object // objects written by the controllers since makeFor began
}

// newClaiming returns a claiming of the world's claims. New claims get the creation time now.
func newClaiming(of *objects.World, now metav1.Time) *claiming {
	k, c := &claiming{world: of}, of.Cluster()
	k.claims = claimcontrollers.Claims{
		Cluster: c, StorageClass: admission.DefaultStorageClass(c.StorageClasses.All()),
		Template: func(namespace, name string) (*resourcev1.ResourceClaimTemplate, bool) {
			return objects.Get[*resourcev1.ResourceClaimTemplate](of, namespace, name)
		},
		Show: k.recordObject, ShowGone: k.showGone,
	}
	k.controllers = claimcontrollers.Controllers{Cluster: c, Feed: k.takeEvent, Now: func() metav1.Time { return now }}
	return k
}

// takeEvent applies the controllers' writes to the world. It ignores all other events, to which
// only the scheduler's core would react.
func (k *claiming) takeEvent(e cycle.Event) {
	switch e := e.(type) {
	case cycle.Seen:
		k.recordObject(e.Kind, e.Object)
	case cycle.Gone:
		k.showGone(e.Kind, e.Object)
	}
}

// recordObject stores an object written by a controller, and showGone removes an object deleted by
// one.
func (k *claiming) recordObject(_ cycle.Kind, object metav1.Object) {
	k.recorded = append(k.recorded, object)
	k.world.Put(object)
}

func (k *claiming) showGone(_ cycle.Kind, object metav1.Object) { k.world.Delete(object) }

// makeFor returns the claims that controllers make for a new pod, and records their names in the
// pod. The claims of the pod that it replaces, if any, are released first. makeFor undoes its
// changes to the world: only createClaims adds the claims.
func (k *claiming) makeFor(object *v1.Pod, before *pod) []metav1.Object {
	defer k.world.Undo(k.world.Mark())
	if before != nil {
		k.releaseOf(before)
	}
	k.recorded = nil
	k.claims.MakeFor(object)
	return k.recorded
}

// createClaims adds the claims returned by makeFor to the world.
func (k *claiming) createClaims(claims []metav1.Object) {
	for _, object := range claims {
		k.recordObject("", object)
	}
}

// reserveFor binds the pod's volumes and allocates its devices for the node on which the pod is
// placed.
func (k *claiming) reserveFor(p *pod, n *cluster.Node, s *scheduler) {
	if s == nil {
		return
	}
	for _, r := range s.profile.Reservers {
		volumes, ofVolumes := r.(plugins.VolumeReserver)
		switch {
		case ofVolumes && p.hasVolumes():
			// An error means that the node does not suit the volumes after all. The pod is placed
			// without them; a proof excludes this case where it matters.
			if chosen, err := volumes.PodVolumes(k.world.Cluster(), p.Pod, n); err == nil {
				k.controllers.Bind(chosen, n)
			}
		case !ofVolumes:
			_ = k.world.Reserve(r, p.Pod, n) // on an error the pod is placed without devices, as with volumes
		}
	}
}

// releaseOf frees the devices of a removed pod and deletes the claims of its ephemeral volumes.
// Other claims stay.
func (k *claiming) releaseOf(p *pod) {
	if len(p.object.Spec.ResourceClaims) > 0 || len(p.Class.Requests.Scalars) > 0 {
		k.controllers.Gone(p.Pod)
	}
	if p.hasVolumes() {
		k.claims.Release(p.object)
	}
}

// hasVolumes reports whether the pod has volume claims; hasDevices does the same for device claims.
func (p *pod) hasVolumes() bool { return claimsVolumes(p.object) }
func (p *pod) hasDevices() bool { return len(p.object.Spec.ResourceClaims) > 0 }

// claimsVolumes reports whether a pod has PersistentVolumeClaims, named or ephemeral.
func claimsVolumes(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// mayClaim reports whether a pod may claim volumes or devices. If the state has device classes or
// claims, any extended resource may be backed by devices. A false positive is harmless: After then
// carries out the plan with claims, at a higher cost and with the same result.
func mayClaim(p *v1.Pod, state *State) bool {
	extended := slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool {
		return rules.Any(maps.Keys(c.Resources.Requests), cluster.IsScalar)
	})
	return len(p.Spec.ResourceClaims) > 0 || claimsVolumes(p) ||
		extended && (objects.Has[*resourcev1.DeviceClass](state.World) || objects.Has[*resourcev1.ResourceClaim](state.World))
}

// namesHolds names the kinds of claims keeping a pod on the node where they are bound.
func (p *pod) namesHolds() string {
	switch {
	case p.hasVolumes() && p.hasDevices():
		return "volumes or devices"
	case p.hasDevices():
		return "devices"
	}
	return "volumes"
}

// claimsAfter carries out a plan on the claims of a state, and stores the resulting volume and
// device claims in after. It returns the successors by the UIDs of their victims. It opens the
// world again, without gauges and proofs, and puts each pod on its planned node.
func (plan *Plan) claimsAfter(state, after *State) (successors map[types.UID]*v1.Pod) {
	w := beginWorld(state, plan.options)
	for _, object := range w.pods {
		w.enterPod(object)
	}

	// Arrivals belong between the moves: a pod arriving after the third move may need a volume
	// released by the third victim.
	arrive := func(moves int) {
		for _, p := range slices.Clone(w.waiting) {
			for i := range plan.Arrivals {
				if a := &plan.Arrivals[i]; a.After == moves && a.UID == p.object.UID && w.c.Node(a.Node) != nil {
					w.placePod(p, w.c.Node(a.Node))
				}
			}
		}
	}

	successors = map[types.UID]*v1.Pod{}
	arrive(0)
	for i := range plan.Moves {
		m := &plan.Moves[i]
		if p := w.placed[m.UID]; p != nil && w.c.Node(m.To) != nil {
			successors[m.UID] = w.replacePod(p, w.c.Node(m.To)).object
		}
		arrive(i + 1)
	}

	objects.Replace[*v1.PersistentVolumeClaim](after.World, w.World)
	objects.Replace[*v1.PersistentVolume](after.World, w.World)
	objects.Replace[*resourcev1.ResourceClaim](after.World, w.World)
	return successors
}
