// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Hints shared by the volume plugins.

// claimNames lists the claims used by the pod or made for it, whether or not they exist.
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

// ofClaim reports whether the event changed one of the pod's claims in a way relevant to a plugin.
// Most updates of claims only change labels or managed fields, and do not count.
func ofClaim(item *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*v1.PersistentVolumeClaim)
	claim, isNew := e.New.(*v1.PersistentVolumeClaim)
	// The claim was deleted; its last state identifies the owner.
	if !isNew {
		claim = was
	}
	if claim == nil || claim.Namespace != item.Pod.Namespace || !slices.Contains(claimNames(item.Pod), claim.Name) {
		return false
	}
	// A different UID means a new claim with the same name. A pod with a terminating claim is
	// rejected as a whole, so the start of a deletion counts as well.
	return !isOld || !isNew || !reflect.DeepEqual(was.Spec, claim.Spec) || !reflect.DeepEqual(was.Status, claim.Status) ||
		!reflect.DeepEqual(was.Annotations, claim.Annotations) || was.UID != claim.UID ||
		was.DeletionTimestamp.IsZero() != claim.DeletionTimestamp.IsZero()
}

// ofVolume reports whether the volume belongs to one of the pod's claims or could be bound to one.
// It compares the class and checks for reservations by other claims, but ignores the size. An event
// with an unknown object counts.
func (setting Setting) ofVolume(item *queue.Item, e *queue.Event) bool {
	volume, ok := e.New.(*v1.PersistentVolume)
	if !ok {
		volume, ok = e.Old.(*v1.PersistentVolume)
	}
	if !ok {
		return true
	}
	return slices.ContainsFunc(setting.claimsOf(item), func(claim *v1.PersistentVolumeClaim) bool {
		return claim.Spec.VolumeName == volume.Name ||
			claim.Spec.VolumeName == "" && claimClass(claim) == volumeClass(volume) && !keptForOther(volume, claim)
	})
}

// ofVolumeZone is ofVolume, but ignores updates that leave the volume's zone labels unchanged.
func (setting Setting) ofVolumeZone(item *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*v1.PersistentVolume)
	is, isNew := e.New.(*v1.PersistentVolume)
	// VolumeZone reads only the zone labels of a volume.
	same := isOld && isNew && was.UID == is.UID && !slices.ContainsFunc(zoneLabels, func(key string) bool {
		before, had := was.Labels[key]
		now, has := is.Labels[key]
		return had != has || before != now
	})
	return !same && setting.ofVolume(item, e)
}

// claimsOf returns the pod's existing claims.
func (setting Setting) claimsOf(item *queue.Item) (claims []*v1.PersistentVolumeClaim) {
	for _, name := range claimNames(item.Pod) {
		if claim, ok := setting.Cluster.Claims.Get(item.Pod.Namespace, name); ok {
			claims = append(claims, claim)
		}
	}
	return claims
}

// usesClass reports whether one of the pod's claims has the storage class, and no volume yet.
func (setting Setting) usesClass(item *queue.Item, name string) bool {
	return slices.ContainsFunc(setting.claimsOf(item), func(c *v1.PersistentVolumeClaim) bool {
		return c.Spec.VolumeName == "" && claimClass(c) == name
	})
}

// ofStorageClass is the hint for storage classes: the class is new, or allows other topologies. Its
// provisioner and binding mode are immutable.
func (setting Setting) ofStorageClass(item *queue.Item, e *queue.Event) bool {
	class, ok := e.New.(*storagev1.StorageClass)
	if !ok || !setting.usesClass(item, class.Name) {
		return false
	}
	was, ok := e.Old.(*storagev1.StorageClass)
	// A recreated class may provision differently.
	return !ok || was.UID != class.UID || !reflect.DeepEqual(was.AllowedTopologies, class.AllowedTopologies)
}

// ofCapacity is the hint for CSI capacities: an unbound claim of the pod has the capacity's storage
// class, and the capacity is new, has grown or has moved.
func (setting Setting) ofCapacity(item *queue.Item, e *queue.Event) bool {
	is, ok := e.New.(*storagev1.CSIStorageCapacity)
	if !ok || !setting.usesClass(item, is.StorageClassName) {
		return false
	}
	was, ok := e.Old.(*storagev1.CSIStorageCapacity)
	return !ok || moreStorage(was, is)
}

// moreStorage reports whether a capacity has grown or moved.
func moreStorage(was, is *storagev1.CSIStorageCapacity) bool {
	return largestVolume(is) > largestVolume(was) || !reflect.DeepEqual(was.NodeTopology, is.NodeTopology)
}

// nodeNowServes is a volume filter's hint for node events. Node events cannot help pods rejected as
// a whole, which are requeued by events of their claims.
func (setting Setting) nodeNowServes(item *queue.Item, e *queue.Event) bool {
	if e.Node == nil {
		return false
	}
	judge := setting.Filter.Filter(setting.Cluster, askedPod(item))
	switch {
	case judge.Err != nil:
		return true
	case judge.All != nil:
		return false
	}
	passes := func(n *cluster.Node) bool { return judge.Node == nil || judge.Node(n) == nil }
	return passes(e.Node) && (e.NodeBefore == nil || !passes(e.NodeBefore))
}
