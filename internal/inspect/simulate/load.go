package simulate

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// load shows the core the objects that are neither nodes nor pods.
func (w *World) load(set *manifest.Set) {
	showAll(w, cycle.Namespaces, set.Namespaces)
	showAll(w, cycle.Services, set.Services)
	showAll(w, cycle.ReplicationControllers, set.ReplicationControllers)
	showAll(w, cycle.ReplicaSets, set.ReplicaSets)
	showAll(w, cycle.StatefulSets, set.StatefulSets)
	showAll(w, cycle.DisruptionBudgets, set.PodDisruptionBudgets)
	showAll(w, cycle.Volumes, set.PersistentVolumes)
	showAll(w, cycle.Claims, set.PersistentVolumeClaims)
	showAll(w, cycle.StorageClasses, set.StorageClasses)
	showAll(w, cycle.CSINodes, set.CSINodes)
	showAll(w, cycle.CSIDrivers, set.CSIDrivers)
	showAll(w, cycle.CSICapacities, set.CSIStorageCapacities)
	showAll(w, cycle.VolumeAttachments, set.VolumeAttachments)
	showAll(w, cycle.ResourceSlices, set.ResourceSlices)
	showAll(w, cycle.ResourceClaims, set.ResourceClaims)
	showAll(w, cycle.DeviceClasses, set.DeviceClasses)
	w.showGroups(set.PodGroups)
}

// loadApplied shows the core what kubectl apply makes of manifests: what controllers have written
// to the objects that are there already stays.
func (w *World) loadApplied(set *manifest.Set) {
	applied := *set
	applied.PersistentVolumeClaims = slices.DeleteFunc(slices.Clone(set.PersistentVolumeClaims), func(claim *v1.PersistentVolumeClaim) bool {
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
	w.load(&applied)
	for _, t := range set.ResourceClaimTemplates {
		w.templates[Name{t.Namespace, t.Name}] = t
	}
	w.restrict(set.ResourceQuotas, set.LimitRanges)
}

func showAll[T metav1.Object](w *World, kind cycle.Kind, list []T) {
	for _, object := range list {
		w.show(kind, object)
	}
}

// identify gives a pod what the API server gives to every object: a UID, and the time at which it
// was created.
func identify(p *v1.Pod, now time.Time) {
	if p.UID == "" {
		p.UID = types.UID(p.Namespace + "/" + p.Name)
	}
	if p.CreationTimestamp.IsZero() {
		p.CreationTimestamp = metav1.NewTime(now)
	}
}
