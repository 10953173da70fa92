package rebalance

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// After returns the state that a plan leads to: each victim is gone and its successor runs where
// the plan says, pending pods that found a node are placed, and the nodes that stay closed are
// tainted.
func (plan *Plan) After(state *State) *State {
	moves := map[types.UID]*Move{}
	for i := range plan.Moves {
		m := &plan.Moves[i]
		moves[m.UID] = m
	}
	arrived := map[types.UID]string{}
	for _, a := range plan.Arrivals {
		arrived[a.UID] = a.Node
	}
	after := &State{AsOf: state.AsOf}
	for _, object := range state.Objects {
		switch o := object.(type) {
		case *v1.Pod:
			m := moves[uidOf(o)]
			if node := arrived[uidOf(o)]; node != "" {
				o = o.DeepCopy()
				o.Spec.NodeName, o.Status.Phase = node, v1.PodRunning
				object = o
			}
			if m == nil {
				break
			}
			if m.To == "" {
				continue
			}
			object = successorOf(o, m, state)
		case *v1.Node:
			if slices.Contains(plan.Empties, o.Name) {
				o = o.DeepCopy()
				o.Spec.Taints = append(o.Spec.Taints, v1.Taint{Key: EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
				object = o
			}
		}
		after.Objects = append(after.Objects, object)
	}
	return after
}

// uidOf returns a pod's UID, or a substitute: pods of manifests may have none.
func uidOf(object *v1.Pod) types.UID {
	if object.UID == "" {
		return types.UID(object.Namespace + "/" + object.Name)
	}
	return object.UID
}

func successorOf(victim *v1.Pod, m *Move, state *State) *v1.Pod {
	next := victim.DeepCopy()
	next.UID = uidOf(victim) + "'"
	next.Spec.NodeName = m.To
	started := metav1.NewTime(state.AsOf)
	next.CreationTimestamp = started
	next.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &started, QOSClass: victim.Status.QOSClass}
	return next
}
