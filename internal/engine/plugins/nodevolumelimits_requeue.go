package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Interests implements Requeuer. The plugin has three reasons to reject a node: its limit is
// reached, a driver is missing there, or a claim of the pod is.
func (*NodeVolumeLimits) Interests(in Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add}, // its CSINode, with the limits, may have come before it
		{Resource: queue.CSINode, Action: queue.Add | queue.Delete},
		{Resource: queue.CSINode, Action: queue.Update, Hint: limitGrew},
		{Resource: queue.CSIDriver, Action: queue.Update | queue.Delete, Hint: driverNotNeeded},
		{Resource: queue.Pod, Action: queue.Delete, Hint: func(_ *queue.Item, e *queue.Event) bool {
			return usedVolumes(e, isAttachable)
		}, Narrowing: everyoneUnless(func(e *queue.Event) bool { return !usedVolumes(e, isAttachable) })},
		{Resource: queue.Claim, Action: queue.Add | queue.Update, Hint: ofClaim, PerPod: true, Narrowing: in.byClaims()},
		{Resource: queue.VolumeAttachment, Action: queue.Delete, Hint: func(item *queue.Item, _ *queue.Event) bool {
			return slices.ContainsFunc(item.Class.Spec.Volumes, isAttachable)
		}},
	}
}

// usedVolumes reports whether a pod with such a volume has left its node.
func usedVolumes(e *queue.Event, such func(v1.Volume) bool) bool {
	return e.PodBefore != nil && slices.ContainsFunc(e.PodBefore.Class.Spec.Volumes, such)
}

// isAttachable is false for volumes that every node can provide, without attaching anything.
func isAttachable(v v1.Volume) bool {
	return v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.EmptyDir == nil && v.DownwardAPI == nil && v.HostPath == nil
}

// driverNotNeeded reports whether nodes without a driver may have its volumes from now on: its
// CSIDriver no longer requires the driver there, or is gone.
func driverNotNeeded(_ *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*storagev1.CSIDriver)
	is, isNew := e.New.(*storagev1.CSIDriver)
	return !isOld || mustBeInstalled(was) && !(isNew && mustBeInstalled(is))
}

// limitGrew reports whether a node's drivers can attach more, or there is one more driver: nodes
// without it may have been rejected. kube-scheduler misses a driver that has no limit.
func limitGrew(_ *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*storagev1.CSINode)
	is, isNew := e.New.(*storagev1.CSINode)
	if !isOld || !isNew {
		return true
	}
	// Limits before; what is left in the map in the end belongs to drivers that are gone.
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
		case !hasDriver(was, d.Name):
			return true
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

// Wakes implements Waker.
func (*NodeVolumeLimits) Wakes() []string {
	return []string{"a node or CSINode is added or changes", "a pod leaves its node", "a volume is detached", "a CSI driver is installed"}
}

// Fixes implements Fixer.
func (*NodeVolumeLimits) Fixes() []Fix { return []Fix{ProvideVolumes, FreeAttachment} }
