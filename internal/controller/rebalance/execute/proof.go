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
//
// It errs on the side of planning again: a plan costs less than a pod that was disturbed for
// nothing. What it does not look at (labels, budgets, other pods that leave) shows at the eviction
// or at the arrival.
type proof struct {
	cluster *cluster
	// nil until the first plan is requested
	filled map[string]bool // nodes that have got a pod since the plan's state was taken
	busy   bool            // that does not count for this plan: so many before it were outdated
}

// restart forgets what has happened: a plan is made from the state of this moment. It is called
// when a plan is requested.
func (p *proof) restart(busy bool) { p.filled, p.busy = map[string]bool{}, busy }

// notice remembers a node that gets a pod. It has to see an object before the cluster does. A pod
// that loses its node does no harm: room grows.
func (p *proof) notice(object metav1.Object) {
	pod, ok := object.(*v1.Pod)
	if !ok || pod.Spec.NodeName == "" || p.filled == nil {
		return
	}
	if before := p.cluster.pod(pod.Namespace, pod.Name, pod.UID); before == nil || before.Spec.NodeName == "" {
		p.filled[pod.Spec.NodeName] = true
	}
}

// outdated reports whether something that a move depends on has changed in the meantime. It is
// asked when the plan is there, again once the journal is written, and before every try of the
// eviction.
func (p *proof) outdated(m *rebalance.Move) bool {
	victim := p.cluster.pod(m.Namespace, m.Name, m.UID)
	if victim == nil || victim.DeletionTimestamp != nil || victim.Spec.NodeName != m.From {
		return true
	}
	// The removal of a pod that has ended needs no node.
	if m.To == "" {
		return false
	}
	n := p.cluster.node(m.To)
	return n == nil || n.Spec.Unschedulable || n.DeletionTimestamp != nil || !p.busy && p.disturbed(m)
}

// disturbed reports whether another pod has got a node on which the successor may land. Any of the
// equals counts: the successor may have been meant for it.
func (p *proof) disturbed(m *rebalance.Move) bool {
	return p.filled[m.To] || slices.ContainsFunc(m.Or, func(name string) bool { return p.filled[name] })
}
