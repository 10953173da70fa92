// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// errNotInPostFilter is returned to a plugin changing the snapshot at the wrong time.
var errNotInPostFilter = errors.New("the snapshot can be changed from PodGroupPostFilter, while that runs, and at no other time")

// RemovePod implements fwk.MutableSnapshotSharedLister. It removes a placed pod, or a member
// counted on the node for the attempt, from the node until endMutations. The pod is found by its
// UID: a pod recreated under the same name is a different one.
func (l mutableLister) RemovePod(_ klog.Logger, pod *v1.Pod, node string) error {
	s, n, err := l.mutating(node)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(n.Pods, func(p *cluster.Pod) bool { return p.UID == pod.UID })
	if i < 0 {
		return fmt.Errorf("pod %s/%s is not on node %q", pod.Namespace, pod.Name, node)
	}
	s.removePod(n.Pods[i])
	return nil
}

// AddPod implements fwk.MutableSnapshotSharedLister. The pod counts on the node until endMutations,
// whether or not it fits there; the filters check that.
func (l mutableLister) AddPod(info fwk.PodInfo, node string) error {
	s, n, err := l.mutating(node)
	if err == nil {
		s.addGuest(info.GetPod(), n)
	}
	return err
}

// mutating returns the changes begun by StartMutations, and the node to change.
func (l mutableLister) mutating(node string) (*supposition, *cluster.Node, error) {
	g, err := l.session()
	switch {
	case err != nil:
		return nil, nil, err
	case g.mutations == nil:
		return nil, nil, errors.New("the snapshot is changed without StartMutations")
	}
	n := g.attempt.Cluster.Node(node)
	if n == nil {
		return nil, nil, fmt.Errorf("nodeinfo not found for node name %q", node)
	}
	return g.mutations, n, nil
}

// MutableSnapshotSharedLister implements fwk.Handle. It can be called at any time; the lister's
// methods check whether changes are possible.
func (h *handle) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return mutableLister{sharedLister{h.f.set.store}, h.f}
}

// RunReservePluginsReserve calls the out-of-tree plugins at Reserve, hypothetically. Only plugins
// at PodGroupPostFilter may call it. It does not make Berth's own reservations of volumes and
// devices. Like upstream, the first failure ends the calls, and the caller must unreserve.
func (h *handle) RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if g := h.f.group; g == nil || !g.inPostFilter {
		return fwk.AsStatus(errNotInPostFilter)
	}
	for _, plugin := range pluginsAt[fwk.ReservePlugin](h.f, plugins.Reserve) {
		if status := plugin.Reserve(ctx, state, pod, node); !status.IsSuccess() {
			return status.WithPlugin(plugin.Name())
		}
	}
	return nil
}

// RunReservePluginsUnreserve calls Unreserve of the same plugins, in the reverse order. At any
// other time it does nothing, since it cannot return an error.
func (h *handle) RunReservePluginsUnreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	if g := h.f.group; g == nil || !g.inPostFilter {
		return
	}
	for _, plugin := range slices.Backward(pluginsAt[fwk.ReservePlugin](h.f, plugins.Reserve)) {
		plugin.Unreserve(ctx, state, pod, node)
	}
}
