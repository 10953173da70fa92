package execute

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// proof says whether what a plan's first move was proved with still holds. A plan is as old as it
// took to make: meanwhile the victim may have gone, and another pod may have taken the room that
// its successor was to have.
type proof struct {
	cluster *cluster
	filled  map[string]bool // nodes that have got a pod since the plan's state was taken
	busy    bool            // that does not count for this plan: so many before it were outdated
}

// restart forgets what has happened: a plan is made from the state of this moment.
func (p *proof) restart(busy bool) { p.filled, p.busy = map[string]bool{}, busy }

// notice remembers a node that gets a pod. It has to see an object before the cluster does.
func (p *proof) notice(object metav1.Object) {
	pod, ok := object.(*v1.Pod)
	if !ok || pod.Spec.NodeName == "" || p.filled == nil {
		return
	}
	if before := p.cluster.pod(pod.Namespace, pod.Name, pod.UID); before == nil || before.Spec.NodeName == "" {
		p.filled[pod.Spec.NodeName] = true
	}
}

// outdated reports whether something that a move depends on has changed in the meantime.
func (p *proof) outdated(m *rebalance.Move) bool {
	victim := p.cluster.pod(m.Namespace, m.Name, m.UID)
	if victim == nil || victim.DeletionTimestamp != nil || victim.Spec.NodeName != m.From {
		return true
	}
	if m.To == "" {
		return false
	}
	n := p.cluster.node(m.To)
	return n == nil || n.Spec.Unschedulable || n.DeletionTimestamp != nil || !p.busy && p.disturbed(m)
}

// disturbed reports whether another pod has got a node on which the successor may land.
func (p *proof) disturbed(m *rebalance.Move) bool {
	return p.filled[m.To] || slices.ContainsFunc(m.Or, func(name string) bool { return p.filled[name] })
}
