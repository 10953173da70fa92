package hints

import (
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
)

func (h *hints) volumeRestrictions() []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add},
		{Resource: queue.Node, Action: queue.Delete, Hint: func(item *queue.Item, e *queue.Event) bool {
			return slices.ContainsFunc(e.NodeBefore.Pods, func(p *cluster.Pod) bool { return sharesVolume(item.Class, p.Class) })
		}},
		{Resource: queue.Pod, Action: queue.Delete, Hint: func(item *queue.Item, e *queue.Event) bool {
			return e.PodBefore != nil && sharesVolume(item.Class, e.PodBefore.Class)
		}},
		{Resource: queue.Claim, Action: queue.Add, Hint: ofClaim, PerPod: true},
	}
}

// sharesVolume tells whether two pods use a disk of the same kind, or the same claim.
func sharesVolume(a, b *cluster.PodClass) bool {
	for i := range a.Spec.Volumes {
		for j := range b.Spec.Volumes {
			x, y := &a.Spec.Volumes[i], &b.Spec.Volumes[j]
			switch {
			case plugins.DisksConflict(x, y):
				return true
			case x.PersistentVolumeClaim != nil && y.PersistentVolumeClaim != nil && a.Namespace == b.Namespace &&
				x.PersistentVolumeClaim.ClaimName == y.PersistentVolumeClaim.ClaimName:
				return true
			}
		}
	}
	return false
}

func (h *hints) volumeLimits() []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add}, // of a driver that has told its limit before the node
		{Resource: queue.CSINode, Action: queue.Add | queue.Delete},
		{Resource: queue.CSINode, Action: queue.Update, Hint: limitGrew},
		{Resource: queue.Pod, Action: queue.Delete, Hint: func(_ *queue.Item, e *queue.Event) bool {
			return e.PodBefore != nil && slices.ContainsFunc(e.PodBefore.Class.Spec.Volumes, attachable)
		}},
		{Resource: queue.Claim, Action: queue.Add | queue.Update, Hint: ofClaim, PerPod: true},
		{Resource: queue.VolumeAttachment, Action: queue.Delete},
	}
}

// attachable leaves out the volumes that every node can give.
func attachable(v v1.Volume) bool {
	return v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.EmptyDir == nil && v.DownwardAPI == nil && v.HostPath == nil
}

func limitGrew(_ *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*storagev1.CSINode)
	is, isNew := e.New.(*storagev1.CSINode)
	if !isOld || !isNew {
		return true
	}
	limits := map[string]int32{}
	for _, d := range was.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = *d.Allocatable.Count
		}
	}
	for _, d := range is.Spec.Drivers {
		limit, limited := limits[d.Name]
		delete(limits, d.Name)
		switch {
		case d.Allocatable == nil || d.Allocatable.Count == nil:
			if limited {
				return true
			}
		case limited && *d.Allocatable.Count > limit:
			return true
		}
	}
	return len(limits) > 0 // a driver that is gone limits nothing
}

func (h *hints) volumeBinding() []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel},
		{Resource: queue.Claim, Action: queue.All, Hint: ofClaim, PerPod: true},
		{Resource: queue.Volume, Action: queue.All, Hint: h.ofVolume, PerPod: true},
		{Resource: queue.StorageClass, Action: queue.Add | queue.Update, Hint: h.ofStorageClass, PerPod: true},
		{Resource: queue.CSINode, Action: queue.All, Hint: func(_ *queue.Item, e *queue.Event) bool {
			was, isOld := e.Old.(*storagev1.CSINode)
			is, isNew := e.New.(*storagev1.CSINode)
			return !isOld || !isNew || was.Annotations[v1.MigratedPluginsAnnotationKey] != is.Annotations[v1.MigratedPluginsAnnotationKey]
		}},
		{Resource: queue.CSIDriver, Action: queue.All, Hint: func(_ *queue.Item, e *queue.Event) bool {
			was, isOld := e.Old.(*storagev1.CSIDriver)
			is, isNew := e.New.(*storagev1.CSIDriver)
			tracks := func(d *storagev1.CSIDriver) bool { return d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity }
			return isOld && tracks(was) && !(isNew && tracks(is))
		}},
		{Resource: queue.CSIStorageCapacity, Action: queue.Add | queue.Update, Hint: h.ofCapacity, PerPod: true},
	}
}

func (h *hints) volumeZone() []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel},
		{Resource: queue.Claim, Action: queue.Add | queue.Update, Hint: ofClaim, PerPod: true},
		{Resource: queue.Volume, Action: queue.Add | queue.Update, Hint: h.ofVolume, PerPod: true},
		{Resource: queue.StorageClass, Action: queue.Add | queue.Update, Hint: h.ofStorageClass, PerPod: true},
	}
}

// claimNames lists the claims that the pod uses or that are made for it.
func claimNames(pod *v1.Pod) (names []string) {
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, ephemeral.VolumeClaimName(pod, v))
		}
	}
	return names
}

// ofClaim tells whether a claim is the pod's, and has changed.
func ofClaim(item *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*v1.PersistentVolumeClaim)
	claim, isNew := e.New.(*v1.PersistentVolumeClaim)
	if !isNew {
		claim = was
	}
	if claim == nil || claim.Namespace != item.Pod.Namespace || !slices.Contains(claimNames(item.Pod), claim.Name) {
		return false
	}
	return !isOld || !isNew || !reflect.DeepEqual(was.Spec, claim.Spec) || !reflect.DeepEqual(was.Status, claim.Status) ||
		!reflect.DeepEqual(was.Annotations, claim.Annotations) || was.UID != claim.UID || was.DeletionTimestamp.IsZero() != claim.DeletionTimestamp.IsZero()
}

// ofVolume tells whether a volume is one that the pod's claims have, or could get.
func (h *hints) ofVolume(item *queue.Item, e *queue.Event) bool {
	volume, ok := e.New.(*v1.PersistentVolume)
	if !ok {
		volume, ok = e.Old.(*v1.PersistentVolume)
	}
	if !ok {
		return true
	}
	for _, claim := range h.claims(item) {
		if claim.Spec.VolumeName == volume.Name || claim.Spec.VolumeName == "" && plugins.ClaimClass(claim) == plugins.VolumeClass(volume) {
			return true
		}
	}
	return false
}

func (h *hints) claims(item *queue.Item) (claims []*v1.PersistentVolumeClaim) {
	for _, name := range claimNames(item.Pod) {
		if claim, ok := h.c.Claims.Get(item.Pod.Namespace, name); ok {
			claims = append(claims, claim)
		}
	}
	return claims
}

func (h *hints) usesClass(item *queue.Item, name string) bool {
	return slices.ContainsFunc(h.claims(item), func(c *v1.PersistentVolumeClaim) bool {
		return c.Spec.VolumeName == "" && plugins.ClaimClass(c) == name
	})
}

func (h *hints) ofStorageClass(item *queue.Item, e *queue.Event) bool {
	class, ok := e.New.(*storagev1.StorageClass)
	if !ok || !h.usesClass(item, class.Name) {
		return false
	}
	was, ok := e.Old.(*storagev1.StorageClass)
	return !ok || was.UID != class.UID || !reflect.DeepEqual(was.AllowedTopologies, class.AllowedTopologies)
}

func (h *hints) ofCapacity(item *queue.Item, e *queue.Event) bool {
	is, ok := e.New.(*storagev1.CSIStorageCapacity)
	if !ok || !h.usesClass(item, is.StorageClassName) {
		return false
	}
	was, ok := e.Old.(*storagev1.CSIStorageCapacity)
	return !ok || plugins.LargestVolume(is) > plugins.LargestVolume(was) || !reflect.DeepEqual(was.NodeTopology, is.NodeTopology)
}
