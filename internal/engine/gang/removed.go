// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// RemovedPods holds pods that are hypothetically off their nodes, so that decisions see their room
// as free. All pods must be restored in the same step.
type RemovedPods struct {
	cluster *cluster.Cluster
	pods    []*cluster.Pod
	from    map[types.UID]*cluster.Node // previous node of every pod ever removed
}

// Without returns an empty set of removed pods.
func Without(c *cluster.Cluster) *RemovedPods {
	return &RemovedPods{cluster: c}
}

// Len returns the number of pods currently removed.
func (r *RemovedPods) Len() int { return len(r.pods) }

// Remove takes pods off their nodes.
func (r *RemovedPods) Remove(pods ...*cluster.Pod) {
	if r.from == nil {
		r.from = map[types.UID]*cluster.Node{}
	}
	for _, p := range pods {
		r.from[p.UID] = p.Node
		r.pods = append(r.pods, p)
		r.cluster.RemovePod(p.UID)
	}
}

// NodeOf returns the previous node of a removed pod.
func (r *RemovedPods) NodeOf(p *cluster.Pod) *cluster.Node { return r.from[p.UID] }

// Restore puts some of the removed pods back.
func (r *RemovedPods) Restore(pods []*cluster.Pod) {
	for _, p := range pods {
		r.cluster.Place(p, r.from[p.UID])
		r.pods = slices.DeleteFunc(r.pods, func(other *cluster.Pod) bool { return other == p })
	}
}

// RestoreAfter puts back the pods from index keep onwards.
func (r *RemovedPods) RestoreAfter(keep int) {
	for _, p := range r.pods[keep:] {
		r.cluster.Place(p, r.from[p.UID])
	}
	r.pods = r.pods[:keep]
}
