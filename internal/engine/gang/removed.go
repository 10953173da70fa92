package gang

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// RemovedPods are hypothetically off their nodes: decisions see the room that they would leave.
// All of them must be restored in the step in which they were removed.
type RemovedPods struct {
	cluster *cluster.Cluster
	pods    []*cluster.Pod
	from    map[types.UID]*cluster.Node // of every pod that was ever removed, where it was
}

// Without returns a set of removed pods that is empty yet.
func Without(c *cluster.Cluster) *RemovedPods {
	return &RemovedPods{cluster: c}
}

// Len is how many pods are removed now.
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

// NodeOf returns the node that a removed pod was on.
func (r *RemovedPods) NodeOf(p *cluster.Pod) *cluster.Node { return r.from[p.UID] }

// Restore puts some of the removed pods where they were.
func (r *RemovedPods) Restore(pods []*cluster.Pod) {
	for _, p := range pods {
		r.cluster.Place(p, r.from[p.UID])
		r.pods = slices.DeleteFunc(r.pods, func(other *cluster.Pod) bool { return other == p })
	}
}

// RestoreAfter puts all pods but the first keep where they were.
func (r *RemovedPods) RestoreAfter(keep int) {
	for _, p := range r.pods[keep:] {
		r.cluster.Place(p, r.from[p.UID])
	}
	r.pods = r.pods[:keep]
}
