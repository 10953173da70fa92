// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// ofDeviceClass is the hint for device classes. It reports whether the pod requests devices of the
// class, either by a claim that names the class, or by an extended resource that the class provides
// now or provided before. The loss of the class can help as well, because nodes may have the
// resource themselves.
func (setting Setting) ofDeviceClass(item *queue.Item, e *queue.Event) bool {
	if ofExtendedClass(item, e) {
		return true
	}
	class, _ := e.New.(*resourcev1.DeviceClass)
	if class == nil {
		return false
	}
	for i := range item.Pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(item.Pod, &item.Pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // the claim does not exist yet; its creation is a separate event
		}
		if claim, ok := setting.Cluster.ResourceClaims.Get(item.Pod.Namespace, *name); ok && namesClass(claim, class.Name) {
			return true
		}
	}
	return false
}

// namesClass reports whether one of the claim's requests, or of their alternatives, names the
// class.
func namesClass(claim *resourcev1.ResourceClaim, class string) bool {
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if request.Exactly != nil && request.Exactly.DeviceClassName == class {
			return true
		}
		for j := range request.FirstAvailable {
			if request.FirstAvailable[j].DeviceClassName == class {
				return true
			}
		}
	}
	return false
}

// ofExtendedClass reports whether the class provides now or provided before an extended resource
// requested by the pod.
func ofExtendedClass(item *queue.Item, e *queue.Event) bool {
	for name := range item.Class.Requests.Scalars {
		for _, object := range [...]any{e.Old, e.New} {
			if class, ok := object.(*resourcev1.DeviceClass); ok && standsFor(class, name) {
				return true
			}
		}
	}
	return false
}

// standsFor reports whether a class provides an extended resource, under the name in its spec or
// under the implicit name deviceclass.resource.kubernetes.io/<class>.
func standsFor(class *resourcev1.DeviceClass, name v1.ResourceName) bool {
	return ptr.Deref(class.Spec.ExtendedResourceName, "") == string(name) || string(name) == resourcev1.ResourceDeviceClassPrefix+class.Name
}

// extendedNameChanged reports whether the event changed the extended resource provided by a class.
// Creation, deletion and recreation under the same name count as changes.
func extendedNameChanged(e *queue.Event) bool {
	was, isOld := e.Old.(*resourcev1.DeviceClass)
	is, isNew := e.New.(*resourcev1.DeviceClass)
	return !isOld || !isNew || was.UID != is.UID || !ptr.Equal(was.Spec.ExtendedResourceName, is.Spec.ExtendedResourceName)
}
