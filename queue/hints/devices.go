package hints

import (
	"reflect"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-k8s/berth/queue"
)

// devices is what can help against DynamicResources.
func (h *hints) devices() []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel | queue.UpdateNodeAllocatable},
		{Resource: queue.ResourceClaim, Action: queue.All, Hint: h.ofResourceClaim, PerPod: true},
		{Resource: queue.Pod, Action: queue.UpdatePodGeneratedResourceClaim, Hint: own},
		{Resource: queue.DeviceClass, Action: queue.Add | queue.Update},
		{Resource: queue.ResourceSlice, Action: queue.Add | queue.Update | queue.Delete}, // a pool is complete without an outdated slice
	}
}

// ofResourceClaim tells whether a claim gives devices back, or is the pod's own and has changed.
func (h *hints) ofResourceClaim(item *queue.Item, e *queue.Event) bool {
	was, _ := e.Old.(*resourcev1.ResourceClaim)
	is, _ := e.New.(*resourcev1.ResourceClaim)
	if was != nil && was.Status.Allocation != nil && (is == nil || is.Status.Allocation == nil || is.UID != was.UID) {
		return true
	}
	if is == nil || item.Pod.Namespace != is.Namespace {
		return false
	}
	for i := range item.Pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(item.Pod, &item.Pod.Spec.ResourceClaims[i])
		if err == nil && name != nil && *name == is.Name {
			return was == nil || was.UID != is.UID || !reflect.DeepEqual(was.Status, is.Status)
		}
	}
	return false
}
