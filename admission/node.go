package admission

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Node taints a new node, in place, so that no pod is placed on it before it
// has said that it is ready; node health takes the taint away again. It is
// kube-apiserver's plugin TaintNodesByCondition.
func Node(node *v1.Node) {
	taint := v1.Taint{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
}
