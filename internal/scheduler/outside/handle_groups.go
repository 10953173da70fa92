package outside

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Plugins are shown no PodGroups, whose API is beta and off: Berth places groups with its own
// search, and calls no plugin at the extension points that only groups have.

var errNoGroups = errors.New("berth places pod groups itself and calls no plugins at the extension points of groups")

// PodGroupManager knows no groups.
func (h *handle) PodGroupManager() fwk.PodGroupManager { return noGroupManager{} }

// MutableSnapshotSharedLister shows the snapshot and cannot change it: only plugins at
// PodGroupPostFilter may ask for that.
func (h *handle) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return fixedLister{sharedLister{h.f.set.store}}
}

// RunReservePluginsReserve is for plugins at PodGroupPostFilter, too.
func (h *handle) RunReservePluginsReserve(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status {
	return fwk.AsStatus(errNoGroups)
}

// RunReservePluginsUnreserve does nothing: nothing was reserved.
func (h *handle) RunReservePluginsUnreserve(context.Context, fwk.CycleState, *v1.Pod, string) {}

// fixedLister is a lister whose snapshot does not change.
type fixedLister struct{ sharedLister }

// StartMutations and its siblings implement fwk.MutableSnapshotSharedLister.
func (fixedLister) StartMutations() error                        { return errNoGroups }
func (fixedLister) EndMutations() error                          { return errNoGroups }
func (fixedLister) AddPod(fwk.PodInfo, string) error             { return errNoGroups }
func (fixedLister) RemovePod(klog.Logger, *v1.Pod, string) error { return errNoGroups }

type noGroupManager struct{}

// PodGroupStates and its siblings implement fwk.PodGroupManager.
func (noGroupManager) PodGroupStates() fwk.PodGroupStateLister { return noPodGroups{} }
func (noGroupManager) PodGroups() fwk.PodGroupLister           { return noGroupLister{} }
func (noGroupManager) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}
func (noGroupManager) CompositePodGroups() fwk.CompositePodGroupLister { return noCompositeGroups{} }

func (m noGroupManager) BuildHierarchySnapshotFromPod(*v1.Pod) (fwk.PodGroupManager, error) {
	return m, nil
}

func (noGroupManager) GetRootKeyForGroup(fwk.EntityKey) (fwk.EntityKey, bool, error) {
	return fwk.EntityKey{}, false, nil
}

type (
	noPodGroups       struct{}
	noGroupLister     struct{}
	noCompositeStates struct{}
	noCompositeGroups struct{}
)

func (noPodGroups) Get(_, name string) (fwk.PodGroupState, error) {
	return nil, apierrors.NewNotFound(schedulingv1beta1.Resource("podgroups"), name)
}

func (noGroupLister) Get(_, name string) (*schedulingv1beta1.PodGroup, error) {
	return nil, apierrors.NewNotFound(schedulingv1beta1.Resource("podgroups"), name)
}

func (noCompositeStates) Get(_, name string) (fwk.CompositePodGroupState, error) {
	return nil, apierrors.NewNotFound(schedulingv1alpha3.Resource("compositepodgroups"), name)
}

func (noCompositeGroups) Get(_, name string) (*schedulingv1alpha3.CompositePodGroup, error) {
	return nil, apierrors.NewNotFound(schedulingv1alpha3.Resource("compositepodgroups"), name)
}
