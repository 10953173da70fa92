package simulate

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// loadObjects shows the core the objects that are neither nodes nor pods.
func (w *World) loadObjects(set *manifest.Set) {
	showAll(&w.scheduler, cycle.Namespaces, set.Namespaces)
	showAll(&w.scheduler, cycle.Services, set.Services)
	showAll(&w.scheduler, cycle.ReplicationControllers, set.ReplicationControllers)
	showAll(&w.scheduler, cycle.ReplicaSets, set.ReplicaSets)
	showAll(&w.scheduler, cycle.StatefulSets, set.StatefulSets)
	showAll(&w.scheduler, cycle.DisruptionBudgets, set.PodDisruptionBudgets)
	showAll(&w.scheduler, cycle.Volumes, set.PersistentVolumes)
	showAll(&w.scheduler, cycle.Claims, set.PersistentVolumeClaims)

	showAll(&w.scheduler, cycle.StorageClasses, set.StorageClasses)
	showAll(&w.scheduler, cycle.CSINodes, set.CSINodes)
	showAll(&w.scheduler, cycle.CSIDrivers, set.CSIDrivers)
	showAll(&w.scheduler, cycle.CSICapacities, set.CSIStorageCapacities)
	showAll(&w.scheduler, cycle.VolumeAttachments, set.VolumeAttachments)
	showAll(&w.scheduler, cycle.ResourceSlices, set.ResourceSlices)
	showAll(&w.scheduler, cycle.ResourceClaims, set.ResourceClaims)
	showAll(&w.scheduler, cycle.DeviceClasses, set.DeviceClasses)
	showAll(&w.scheduler, cycle.DeviceTaintRules, set.DeviceTaintRules)
	w.scheduler.showComposites(set.CompositePodGroups, w.pods.catalog)
	w.scheduler.showGroups(set.PodGroups, w.pods.catalog)
}

// loadApplied shows the core what kubectl apply makes of manifests: what controllers have written
// to the objects that are there already stays.
func (w *World) loadApplied(set *manifest.Set) {
	applied := *set
	applied.PersistentVolumeClaims = slices.DeleteFunc(slices.Clone(set.PersistentVolumeClaims),
		func(claim *v1.PersistentVolumeClaim) bool {
			_, there := w.c.Claims.Get(claim.Namespace, claim.Name)
			return there
		})

	applied.ResourceClaims = slices.DeleteFunc(slices.Clone(set.ResourceClaims), func(claim *resourcev1.ResourceClaim) bool {
		_, there := w.c.ResourceClaims.Get(claim.Namespace, claim.Name)
		return there
	})

	for _, volume := range set.PersistentVolumes {
		if was, there := w.c.Volumes.Get("", volume.Name); there {
			volume.UID, volume.Spec.ClaimRef, volume.Status = was.UID, was.Spec.ClaimRef, was.Status
		}
	}

	for _, g := range set.PodGroups {
		if was := w.Group(g.Namespace, g.Name); was != nil && was.Object != nil {
			g.UID, g.Status = was.Object.UID, was.Object.Status
		}
	}

	w.loadObjects(&applied)
	w.claims.addTemplates(set.ResourceClaimTemplates)
	var charged []*v1.Pod
	for _, f := range w.Each() {
		if w.pods.named[Name{f.Object.Namespace, f.Object.Name}].charged {
			charged = append(charged, f.Object)
		}
	}

	w.bounds.addLimits(set.ResourceQuotas, set.LimitRanges, charged)
}

func showAll[T metav1.Object](s *scheduler, kind cycle.Kind, list []T) {
	for _, object := range list {
		s.showObject(kind, object)
	}
}
