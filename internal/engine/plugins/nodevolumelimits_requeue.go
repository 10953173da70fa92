// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Interests implements Requeuer. The plugin has three reasons to reject a node: the limit reached,
// a missing driver, or a missing claim of the pod.
func (v *NodeVolumeLimits) Interests(setting Setting) []queue.Interest {
	countsLess := func(_ *queue.Item, e *queue.Event) bool { return v.countsLess(e) }
	fewerVolumes := everyoneUnless(func(e *queue.Event) bool { return !v.countsLess(e) })
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add}, // the CSINode with the node's limits may have been added before the node
		{Resource: queue.CSINode, Action: queue.Add | queue.Delete},
		{Resource: queue.CSINode, Action: queue.Update, Hint: limitGrew},
		{Resource: queue.CSIDriver, Action: queue.Update | queue.Delete, Hint: driverNotNeeded},
		{Resource: queue.Pod, Action: queue.Delete, Hint: func(_ *queue.Item, e *queue.Event) bool {
			return usedVolumes(e, isAttachable)
		}, Narrowing: everyoneUnless(func(e *queue.Event) bool { return !usedVolumes(e, isAttachable) })},
		{Resource: queue.Claim, Action: queue.Add | queue.Update, Hint: ofClaim, PerPod: true, Narrowing: setting.byClaims()},
		{Resource: queue.Claim, Action: queue.Update | queue.Delete, Hint: countsLess, Narrowing: fewerVolumes},
		{Resource: queue.Volume, Action: queue.Delete, Hint: countsLess, Narrowing: fewerVolumes},
		{Resource: queue.VolumeAttachment, Action: queue.Delete, Hint: func(item *queue.Item, _ *queue.Event) bool {
			return slices.ContainsFunc(item.Class.Spec.Volumes, isAttachable)
		}},
	}
}

// usedVolumes reports whether a pod with a volume for which match returns true has left its node.
func usedVolumes(e *queue.Event, match func(v1.Volume) bool) bool {
	return e.PodBefore != nil && slices.ContainsFunc(e.PodBefore.Class.Spec.Volumes, match)
}

// countsLess reports whether nodes may use fewer volumes of a driver without the departure of a
// pod: a claim or volume in use was deleted and no longer counts, or the claim now has another
// volume or class. Finalizers prevent such deletions unless they are removed by force.
// kube-scheduler misses such events.
func (v *NodeVolumeLimits) countsLess(e *queue.Event) bool {
	is, changes := e.New.(*v1.PersistentVolumeClaim)
	was, known := e.Old.(metav1.Object)
	if claim, ok := was.(*v1.PersistentVolumeClaim); ok && changes {
		known = claim.Spec.VolumeName != is.Spec.VolumeName || claimClass(claim) != claimClass(is)
	}
	return known && v.uses.isUsed(cluster.Name{Namespace: was.GetNamespace(), Name: was.GetName()})
}

// isAttachable is false for volumes available on every node without attaching anything.
func isAttachable(v v1.Volume) bool {
	return v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.EmptyDir == nil && v.DownwardAPI == nil && v.HostPath == nil
}

// driverNotNeeded reports whether pods with a driver's volumes may now run on nodes without the
// driver, because its CSIDriver no longer requires the driver there or was deleted.
func driverNotNeeded(_ *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*storagev1.CSIDriver)
	is, isNew := e.New.(*storagev1.CSIDriver)
	return !isOld || mustBeInstalled(was) && !(isNew && mustBeInstalled(is))
}

// limitGrew reports whether a node's drivers can attach more volumes, or include a new driver,
// whose absence may have been the reason for a rejection. kube-scheduler misses a change to an
// unlimited driver.
func limitGrew(_ *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*storagev1.CSINode)
	is, isNew := e.New.(*storagev1.CSINode)
	if !isOld || !isNew {
		return true
	}
	// Limits before the event; entries remaining at the end belong to removed drivers.
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
	return len(limits) > 0 // a removed driver counts as unlimited
}

// Wakes implements Waker.
func (*NodeVolumeLimits) Wakes() []string {
	return []string{"a node or CSINode is added or changes", "a pod leaves its node", "a volume is detached", "a CSI driver is installed",
		"a claim or volume that a pod on a node uses is deleted"}
}

// Fixes implements Fixer.
func (*NodeVolumeLimits) Fixes() []Fix { return []Fix{ProvideVolumes, FreeAttachment} }
