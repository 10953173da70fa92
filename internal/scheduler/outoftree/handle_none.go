// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// The parts of a Handle that Berth does not provide return errors when used. They are nil only
// where plugins expect it.

// APIDispatcher and APICacher are nil, as in a kube-scheduler without the feature gate
// SchedulerAsyncAPICalls: plugins call the API themselves.
func (h *handle) APIDispatcher() fwk.APIDispatcher { return nil }
func (h *handle) APICacher() fwk.APICacher         { return nil }

// SharedCSIManager lists the CSINodes from an informer.
func (h *handle) SharedCSIManager() fwk.CSIManager {
	return csiNodes{h.f.set.informers.Storage().V1().CSINodes().Lister()}
}

// csiNodes reads CSINodes from the informer shared by plugins.
type csiNodes struct{ lister storagelisters.CSINodeLister }

func (c csiNodes) CSINodes() fwk.CSINodeLister                 { return c }
func (c csiNodes) List() ([]*storagev1.CSINode, error)         { return c.lister.List(labels.Everything()) }
func (c csiNodes) Get(name string) (*storagev1.CSINode, error) { return c.lister.Get(name) }

// SharedDRAManager cannot be provided: Berth's own DynamicResources keeps its allocations in the
// cluster model used for decisions.
func (h *handle) SharedDRAManager() fwk.SharedDRAManager { return noDevices{} }

// errNoDevices names the working alternative, since plugin authors read it in their own logs.
var errNoDevices = errors.New("berth gives plugins no SharedDRAManager: read ResourceClaims and ResourceSlices from SharedInformerFactory")

// noDevices and its siblings return errNoDevices from every method, or an empty result if the
// method has no error.
type noDevices struct{}

// ResourceClaims and its siblings implement fwk.SharedDRAManager.
func (noDevices) ResourceClaims() fwk.ResourceClaimTracker     { return noClaims{} }
func (noDevices) ResourceSlices() fwk.ResourceSliceLister      { return noDevices{} }
func (noDevices) DeviceClasses() fwk.DeviceClassLister         { return noClasses{} }
func (noDevices) DeviceClassResolver() fwk.DeviceClassResolver { return noClasses{} }

// ListWithDeviceTaintRules implements fwk.ResourceSliceLister.
func (noDevices) ListWithDeviceTaintRules() ([]*resourcev1.ResourceSlice, error) {
	return nil, errNoDevices
}

// noClasses stands in for the device classes, which cannot be listed.
type noClasses struct{}

func (noClasses) List() ([]*resourcev1.DeviceClass, error)               { return nil, errNoDevices }
func (noClasses) Get(string) (*resourcev1.DeviceClass, error)            { return nil, errNoDevices }
func (noClasses) GetDeviceClass(v1.ResourceName) *resourcev1.DeviceClass { return nil }

// noClaims stands in for the claims, which cannot be tracked. Berth's own DynamicResources makes
// the reservations that a plugin would make.
type noClaims struct{}

func (noClaims) List() ([]*resourcev1.ResourceClaim, error)            { return nil, errNoDevices }
func (noClaims) Get(string, string) (*resourcev1.ResourceClaim, error) { return nil, errNoDevices }
func (noClaims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	return nil, errNoDevices
}
func (noClaims) GatherAllocatedState() (*structured.AllocatedState, error) { return nil, errNoDevices }
func (noClaims) SignalClaimPendingAllocation(types.UID, *resourcev1.ResourceClaim) error {
	return errNoDevices
}
func (noClaims) GetPendingAllocation(types.UID) *resourcev1.AllocationResult { return nil }
func (noClaims) MaybeRemoveClaimPendingAllocation(types.UID, bool) bool      { return false }
func (noClaims) AssumeClaimAfterAPICall(*resourcev1.ResourceClaim) error     { return errNoDevices }
func (noClaims) AssumedClaimRestore(string, string)                          {}
