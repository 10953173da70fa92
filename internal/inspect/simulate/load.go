// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Loading of objects other than nodes and pods: the manifests' objects when the world is opened
// (showSet), and later additions by kubectl apply (loadApplied). The core receives each object as a
// watch event, and computes everything else from these events.

// showSet shows the core all objects except nodes and pods. Pod groups are last, because they take
// the priority of their class from the catalog; composite groups precede the groups in them.
func (s *scheduler) showSet(set *manifest.Set, catalog *admission.Catalog) {
	// Record all objects in the API, including kinds irrelevant to the core. Nodes, pods and
	// workloads are recorded when they are added.
	for _, object := range set.Objects() {
		switch object.(type) {
		case *v1.Node, *v1.Pod:
		default:
			if workload.Of(object) == nil {
				s.follow(object, false)
			}
		}
	}

	showAll(s, cycle.Namespaces, set.Namespaces)
	showAll(s, cycle.Services, set.Services)
	showAll(s, cycle.ReplicationControllers, set.ReplicationControllers)
	showAll(s, cycle.ReplicaSets, set.ReplicaSets)
	showAll(s, cycle.StatefulSets, set.StatefulSets)
	showAll(s, cycle.DisruptionBudgets, set.PodDisruptionBudgets)
	showAll(s, cycle.Volumes, set.PersistentVolumes)
	showAll(s, cycle.Claims, set.PersistentVolumeClaims)

	showAll(s, cycle.StorageClasses, set.StorageClasses)
	showAll(s, cycle.CSINodes, set.CSINodes)
	showAll(s, cycle.CSIDrivers, set.CSIDrivers)
	showAll(s, cycle.CSICapacities, set.CSIStorageCapacities)
	showAll(s, cycle.VolumeAttachments, set.VolumeAttachments)
	showAll(s, cycle.ResourceSlices, set.ResourceSlices)
	showAll(s, cycle.ResourceClaims, set.ResourceClaims)
	showAll(s, cycle.DeviceClasses, set.DeviceClasses)
	showAll(s, cycle.DeviceTaintRules, set.DeviceTaintRules)
	s.showComposites(set.CompositePodGroups, catalog)
	s.showGroups(set.PodGroups, catalog)
}

// loadApplied shows the core the result of kubectl apply, which preserves fields written by
// controllers to existing objects. Manifests usually lack the status and a volume's binding. Shown
// unchanged, they would unbind the claims in use.
func (o *operations) loadApplied(set *manifest.Set) {
	applied := *set
	applied.PersistentVolumeClaims = slices.DeleteFunc(slices.Clone(set.PersistentVolumeClaims),
		func(claim *v1.PersistentVolumeClaim) bool {
			_, there := o.scheduler.c.Claims.Get(claim.Namespace, claim.Name)
			return there
		})

	applied.ResourceClaims = slices.DeleteFunc(slices.Clone(set.ResourceClaims), func(claim *resourcev1.ResourceClaim) bool {
		_, there := o.scheduler.c.ResourceClaims.Get(claim.Namespace, claim.Name)
		return there
	})

	// A volume is replaced except for its binding to a claim.
	for _, volume := range set.PersistentVolumes {
		if was, there := o.scheduler.c.Volumes.Get("", volume.Name); there {
			volume.UID, volume.Spec.ClaimRef, volume.Status = was.UID, was.Spec.ClaimRef, was.Status
		}
	}

	for _, g := range set.PodGroups {
		if was := o.scheduler.groupNamed(g.Namespace, g.Name); was != nil && was.Object != nil {
			g.UID, g.Status = was.Object.UID, was.Object.Status
		}
	}

	// With the identity and status copied above, the core sees an update of the same object rather
	// than another object of that name.
	o.scheduler.showSet(&applied, o.pods.catalog)
	o.scheduler.findStalled(o.workloads.set.Whole)
	// New quotas count existing pods of their namespace. A pod refused by a quota is charged
	// nowhere and does not count.
	var charged []*v1.Pod
	for _, f := range o.scheduler.allFound(o.pods) {
		if o.pods.named[Name{f.Object.Namespace, f.Object.Name}].charged {
			charged = append(charged, f.Object)
		}
	}

	o.bounds.addLimits(set.ResourceQuotas, set.LimitRanges, charged)
}

// findStalled finds the storage classes without a working provisioner. whole is set if the whole
// cluster was read.
func (s *scheduler) findStalled(whole bool) {
	s.controllers.Stalled = plugins.StalledClasses(s.c, s.clock.time(), whole)
}

// showAll shows the core a list of objects of one kind, each in a separate event.
func showAll[T metav1.Object](s *scheduler, kind cycle.Kind, list []T) {
	for _, object := range list {
		s.showObject(kind, object)
	}
}

// claims creates claims for volumes and devices. It acts for the API server, which sets defaults,
// and for the controllers of ephemeral volumes and claim templates. The embedded Claims creates and
// deletes the claims of a pod; the other methods handle all claims of the cluster.
type claims struct {
	claimcontrollers.Claims
	scheduler *scheduler
}

// templateNamed returns a device claim template by name.
func (c *claims) templateNamed(namespace, name string) (*resourcev1.ResourceClaimTemplate, bool) {
	return world.Get[*resourcev1.ResourceClaimTemplate](c.scheduler.api, namespace, name)
}

// identifyClaims assigns a UID to new claims and the default storage class to those without one,
// like the API server. It is called after claims or storage classes are added, and visits all
// claims. It skips claims with a UID or a volume.
func (c *claims) identifyClaims() {
	c.StorageClass = admission.DefaultStorageClass(c.scheduler.c.StorageClasses.All())
	for _, claim := range c.scheduler.c.Claims.All() {
		if claim.UID == "" && claim.Spec.VolumeName == "" {
			claim = claim.DeepCopy()
			if c.StorageClass != nil {
				admission.Claim(claim, c.StorageClass)
			}
			claim.UID = types.UID("claim/" + claim.Namespace + "/" + claim.Name)
			c.scheduler.showObject(cycle.Claims, claim)
		}
	}
}

// addClaims adds claims that do not exist yet and reports whether it added any. The caller must
// then identify the new ones.
func (c *claims) addClaims(list []*v1.PersistentVolumeClaim) (added bool) {
	for _, claim := range list {
		if _, there := c.scheduler.c.Claims.Get(claim.Namespace, claim.Name); !there {
			c.scheduler.showObject(cycle.Claims, claim)
			added = true
		}
	}
	return added
}
