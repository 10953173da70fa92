package simulate

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// How objects other than nodes and pods enter the world: those of the manifests when it is
// opened (showSet), and those that kubectl apply adds later (loadApplied). The core receives
// them as the events of a watch, one for each object, and computes everything else from
// these.

// showSet shows the core the objects that are neither nodes nor pods. Pod groups are last:
// they get the priority of their class from the catalog, and composite groups come before the
// groups in them.
func (s *scheduler) showSet(set *manifest.Set, catalog *admission.Catalog) {
	// What the core is not concerned with. Nodes, pods and workloads are recorded as they are
	// added.
	for _, object := range set.Objects() {
		switch object.(type) {
		case *v1.Node, *v1.Pod:
		default:
			if workload.Of(object) == nil {
				s.api.Follow(object, false)
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

// loadApplied shows the core what kubectl apply makes of manifests: what controllers have
// written to the objects that exist already stays. Manifests usually have neither a status
// nor the binding of a volume; taken as they are, they would unbind the claims that pods use.
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

	// A volume is replaced as a whole, except for what binds it to its claim.
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

	// With the identity and status that were copied above, the core sees an update of the
	// same object, and not another one of its name.
	o.scheduler.showSet(&applied, o.pods.catalog)
	// New quotas count what exists in their namespace already. A pod that a quota refused is
	// not charged anywhere, and does not count.
	var charged []*v1.Pod
	for _, f := range o.scheduler.allFound(o.pods) {
		if o.pods.named[Name{f.Object.Namespace, f.Object.Name}].charged {
			charged = append(charged, f.Object)
		}
	}

	o.bounds.addLimits(set.ResourceQuotas, set.LimitRanges, charged)
}

// showAll shows the core a list of objects of one kind, each as an event of its own.
func showAll[T metav1.Object](s *scheduler, kind cycle.Kind, list []T) {
	for _, object := range list {
		s.showObject(kind, object)
	}
}
