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

// Hints that the plugins which look at volumes share.

// claimNames lists the claims that the pod uses or that are made for it, whether or not they exist.
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

// ofClaim reports whether a claim is the pod's, and has changed in what a plugin looks at. Most
// updates of claims change nothing of that: they are of labels or managed fields.
func ofClaim(item *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*v1.PersistentVolumeClaim)
	claim, isNew := e.New.(*v1.PersistentVolumeClaim)
	// Gone: what it was tells whose it is.
	if !isNew {
		claim = was
	}
	if claim == nil || claim.Namespace != item.Pod.Namespace || !slices.Contains(claimNames(item.Pod), claim.Name) {
		return false
	}
	// A new UID is another claim of the same name, and a deletion that has begun rejects the pod as
	// a whole.
	return !isOld || !isNew || !reflect.DeepEqual(was.Spec, claim.Spec) || !reflect.DeepEqual(was.Status, claim.Status) ||
		!reflect.DeepEqual(was.Annotations, claim.Annotations) || was.UID != claim.UID ||
		was.DeletionTimestamp.IsZero() != claim.DeletionTimestamp.IsZero()
}

// ofVolume reports whether a volume is one that the pod's claims have, or could get: by class, and
// not kept for another claim. Its size is not compared. An event of which the object is not known
// counts.
func (in Setting) ofVolume(item *queue.Item, e *queue.Event) bool {
	volume, ok := e.New.(*v1.PersistentVolume)
	if !ok {
		volume, ok = e.Old.(*v1.PersistentVolume)
	}
	if !ok {
		return true
	}
	for _, claim := range in.claimsOf(item) {
		if claim.Spec.VolumeName == volume.Name {
			return true
		}
		if claim.Spec.VolumeName == "" && claimClass(claim) == volumeClass(volume) && !keptForOther(volume, claim) {
			return true
		}
	}
	return false
}

// ofVolumeZone reports whether such a volume is new, or elsewhere than before.
func (in Setting) ofVolumeZone(item *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*v1.PersistentVolume)
	is, isNew := e.New.(*v1.PersistentVolume)
	// The labels of zones are all that VolumeZone reads of a volume.
	same := isOld && isNew && was.UID == is.UID && !slices.ContainsFunc(zoneLabels, func(key string) bool {
		before, had := was.Labels[key]
		now, has := is.Labels[key]
		return had != has || before != now
	})
	return !same && in.ofVolume(item, e)
}

// claimsOf returns those of the pod's claims that exist.
func (in Setting) claimsOf(item *queue.Item) (claims []*v1.PersistentVolumeClaim) {
	for _, name := range claimNames(item.Pod) {
		if claim, ok := in.Cluster.Claims.Get(item.Pod.Namespace, name); ok {
			claims = append(claims, claim)
		}
	}
	return claims
}

// usesClass reports whether one of the pod's claims has the storage class, and no volume yet.
func (in Setting) usesClass(item *queue.Item, name string) bool {
	return slices.ContainsFunc(in.claimsOf(item), func(c *v1.PersistentVolumeClaim) bool {
		return c.Spec.VolumeName == "" && claimClass(c) == name
	})
}

// ofStorageClass is the hint for storage classes: the class is new, or allows other topologies.
// Whether it provisions, and when, cannot be changed.
func (in Setting) ofStorageClass(item *queue.Item, e *queue.Event) bool {
	class, ok := e.New.(*storagev1.StorageClass)
	if !ok || !in.usesClass(item, class.Name) {
		return false
	}
	was, ok := e.Old.(*storagev1.StorageClass)
	// A class that was deleted and made anew may provision otherwise.
	return !ok || was.UID != class.UID || !reflect.DeepEqual(was.AllowedTopologies, class.AllowedTopologies)
}

// ofCapacity is the hint for CSI capacities: there is more storage of a class that the pod waits
// for.
func (in Setting) ofCapacity(item *queue.Item, e *queue.Event) bool {
	is, ok := e.New.(*storagev1.CSIStorageCapacity)
	if !ok || !in.usesClass(item, is.StorageClassName) {
		return false
	}
	was, ok := e.Old.(*storagev1.CSIStorageCapacity)
	return !ok || moreStorage(was, is)
}

// moreStorage reports whether there is more of a capacity than there was, or it is elsewhere.
func moreStorage(was, is *storagev1.CSIStorageCapacity) bool {
	return largestVolume(is) > largestVolume(was) || !reflect.DeepEqual(was.NodeTopology, is.NodeTopology)
}

// nodeNowServes is the hint for nodes of a filter that looks at volumes. Pods that it rejects as a
// whole are not helped by any node: an event of the claim wakes them.
func (in Setting) nodeNowServes(item *queue.Item, e *queue.Event) bool {
	if e.Node == nil {
		return false
	}
	judge := in.Filter.Filter(in.Cluster, askedPod(item))
	switch {
	case judge.Err != nil:
		return true
	case judge.All != nil:
		return false
	}
	passes := func(n *cluster.Node) bool { return judge.Node == nil || judge.Node(n) == nil }
	return passes(e.Node) && (e.NodeBefore == nil || !passes(e.NodeBefore))
}
