// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// DeferredResizes is upstream's plugin for deferred resizes. The scheduler does its work: the
// feature gate enables it, not the profile.
const DeferredResizes = "DeferredPodScheduling"

// ConfinesResizes reports whether the profile keeps a resize on the node of its pod; see
// [cluster.Cluster.ResizeClass].
func (p *Profile) ConfinesResizes() bool { return p.filterNamed("NodeAffinity") != nil }

// ResizeInterests returns the events that can help a deferred resize rejected by [DeferredResizes].
// Such a resize was kept from preempting by its node, or it fits and waits for the kubelet. In the
// second case, it is decided again when another pod has taken its room.
func (p *Profile) ResizeInterests(c *cluster.Cluster) []queue.Interest {
	setting := Setting{Cluster: c, Profile: p, Filter: p.filterNamed("NodeResourcesFit")}
	lacksRoom := func(item *queue.Item, n *cluster.Node) bool { return setting.Filter != nil && !setting.fitsOn(item, n) }
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodePreemptionPolicy | queue.UpdateNodeAllocatable,
			Hint: func(item *queue.Item, e *queue.Event) bool {
				if e.Node == nil || e.Node.Name != item.Pod.Spec.NodeName || e.Node.Taints.SparesPods {
					return false
				}
				return e.NodeBefore == nil || e.NodeBefore.Taints.SparesPods || lacksRoom(item, e.Node)
			}},
		{Resource: queue.Pod, Action: queue.Add | queue.UpdatePodScaleUp,
			Hint: func(item *queue.Item, e *queue.Event) bool {
				if !isOthers(e) {
					return Own(item, e)
				}
				return e.Node != nil && e.Node.Name == item.Pod.Spec.NodeName && lacksRoom(item, e.Node)
			}},
	}
}
