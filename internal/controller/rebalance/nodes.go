package rebalance

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

func qosOf(object *v1.Pod) v1.PodQOSClass { return rules.QOS(object) }

func tolerates(p *pod, t *v1.Taint) bool { return rules.TolerationOf(t, p.Spec().Tolerations) != nil }

// weight is the weight of the pod's preferred node affinity on a node.
func (w *world) weight(p *pod, n *cluster.Node) int64 {
	s := w.schedulerOf(p)
	if s == nil || s.affinity == nil {
		return 0
	}
	scoring := s.affinity.Score(w.c, p.Pod, nil)
	if scoring.Node == nil {
		return 0
	}
	weight, err := scoring.Node(n)
	if err != nil {
		return 0
	}
	return weight
}

// heaviest is the greatest weight of the pod's preferred node affinity on these nodes.
func (w *world) heaviest(p *pod, on func(n *cluster.Node) bool) (best int64) {
	s := w.schedulerOf(p)
	if s == nil || s.affinity == nil || p.Spec().Affinity == nil || p.Spec().Affinity.NodeAffinity == nil {
		return 0
	}

	scoring := s.affinity.Score(w.c, p.Pod, nil)
	if scoring.Node == nil {
		return 0
	}

	for _, n := range w.c.Nodes {
		if n == nil || !on(n) {
			continue
		}
		if weight, err := scoring.Node(n); err == nil {
			best = max(best, weight)
		}
	}

	return best
}

// suits reports whether affinity, taints and cordon allow the pod on a node.
func (w *world) suits(p *pod, n *cluster.Node) bool {
	if k := w.hard.concernOf(p); k.judge != nil && k.judge(n) != nil {
		return false
	}
	for _, t := range plugins.Untolerated(p.Pod, n) {
		if t.Key != EmptyingTaint { // a node that is closed for some time still suits it
			return false
		}
	}
	return !n.Taints.Unschedulable
}

// suitable counts the nodes that suit the pod.
func (w *world) suitable(p *pod) (count int64) {
	for _, n := range w.c.Nodes {
		if n != nil && w.suits(p, n) {
			count++
		}
	}
	return count
}

// stays reports whether a pod belongs to its node: if it is deleted, it comes back there.
func stays(p *pod) bool { return static(p) || ownerKind(p) == "DaemonSet" }

// static reports whether a pod is its node's own, which no scheduler has placed.
func static(p *pod) bool {
	return p.object.Annotations[v1.MirrorPodAnnotationKey] != "" || ownerKind(p) == "Node"
}
