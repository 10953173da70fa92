// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world"
)

// startsBefore is the time before an eviction for a taint at which its replacement starts. It is
// shorter than the tolerations that Kubernetes adds to pods, so that a short outage of a node
// starts no replacements.
const startsBefore = 2 * time.Minute

// seeNode looks at the pods of a node if its NoExecute taints have changed.
func (g *Guard) seeNode(n *v1.Node) {
	taints, old := evictingTaints(n, g.wall()), g.cluster.node(n.Name)
	if old == nil && len(taints) == 0 || old != nil && equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints) {
		return
	}
	for p := range world.All[*v1.Pod](g.cluster.World) {
		if p.Spec.NodeName == n.Name {
			g.seeTaints(p, taints)
		}
	}
}

// seeTaints starts a replacement of a pod before a taint of its node evicts it. The eviction itself
// is not held: it happens when the seconds of the pod's toleration are over, as Kubernetes
// promises, and immediately without seconds. Pods with a held eviction are replaced in any case.
func (g *Guard) seeTaints(p *v1.Pod, taints []eviction.Held) {
	h := g.held[p.UID]
	if h != nil && h.due.IsZero() {
		return
	}
	due := eviction.Deadline(p.Spec.Tolerations, eviction.PodOf(p).Bound, taints)
	if due.Stays() || !due.At.After(g.wall()) || !g.options.Holds(p) {
		delete(g.held, p.UID)
		return
	}
	start := pacing.Later(due.At.Add(-startsBefore), g.wall())
	if h == nil {
		h = g.hold(p, start)
	}
	h.due, h.next = due.At, g.now.Add(start.Sub(g.wall()))
}

// evictingTaints returns the NoExecute taints of a node. A taint without a time begins now.
func evictingTaints(n *v1.Node, now time.Time) (taints []eviction.Held) {
	for _, taint := range n.Spec.Taints {
		if taint.Effect != v1.TaintEffectNoExecute {
			continue
		}
		since := now
		if taint.TimeAdded != nil {
			since = taint.TimeAdded.Time
		}
		taints = append(taints, eviction.Held{Taint: taint, Since: since})
	}
	return taints
}
