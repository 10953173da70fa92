package rebalance

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	objects "github.com/berth-k8s/berth/internal/world"
)

// After returns the state that a plan leads to: each victim is gone and its successor runs where
// the plan says, pending pods that found a node are placed, and the nodes that stay closed are
// tainted.
//
// Successors run and are ready in it, since the executor waits for that. The state itself is not
// changed; objects that stay as they are are shared. The plan must have been made by [Make] for
// this very state.
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
	// Claims change only if a pod that may have some moves. Without one, the plan need not be
	// carried out again.
	claiming := slices.ContainsFunc(state.Objects, func(object metav1.Object) bool {
		p, ok := object.(*v1.Pod)
		return ok && (moves[objects.UIDOf(p)] != nil || arrived[objects.UIDOf(p)] != "") && mayClaim(p)
	})

	var successors map[types.UID]*v1.Pod
	if claiming {
		after.Objects, successors = plan.claimsAfter(state)
	}

	for _, object := range state.Objects {
		switch o := object.(type) {
		case *v1.PersistentVolumeClaim, *v1.PersistentVolume, *resourcev1.ResourceClaim:
			if claiming {
				continue
			}
		case *v1.Pod:
			m := moves[objects.UIDOf(o)]
			if node := arrived[objects.UIDOf(o)]; node != "" {
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
			next := successors[objects.UIDOf(o)]
			if next == nil {
				next = successorOf(o, state.AsOf)
			}
			object = runningOn(next, m.To, state)
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

// runningOn returns a successor as it runs on its node, ready. Its conditions begin at the time of
// the state: it has been ready for no time at all, so its move costs nothing by age.
func runningOn(next *v1.Pod, node string, state *State) *v1.Pod {
	next = next.DeepCopy()
	next.Spec.NodeName = node
	started := metav1.NewTime(state.AsOf)
	next.Status.Phase, next.Status.StartTime = v1.PodRunning, &started
	next.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: started}}
	return next
}
