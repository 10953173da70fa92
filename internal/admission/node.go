package admission

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// NoteTaintTimes sets timeAdded on evicting taints that lack it, in place: kubectl does not set it,
// and pods count their tolerationSeconds from that time, even after a restart. A taint that the
// node already had, in old, keeps its time: a client that writes the whole list again, which is one
// value to the API, neither loses the time nor restarts it. One that it had without a time stays
// so: it is older than this write, and the eviction controller knows better since when. old is nil
// for a node that is created.
func NoteTaintTimes(node, old *v1.Node, now time.Time) {
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect != v1.TaintEffectNoExecute || taint.TimeAdded != nil {
			continue
		}
		if had := sameOf(taint, old); had != nil {
			taint.TimeAdded = had.TimeAdded
			continue
		}
		taint.TimeAdded = &metav1.Time{Time: now.Truncate(time.Second)}
	}
}

// sameOf returns the node's taint of the same key, value and effect, or nil.
func sameOf(taint *v1.Taint, node *v1.Node) *v1.Taint {
	if node == nil {
		return nil
	}
	for i := range node.Spec.Taints {
		if had := &node.Spec.Taints[i]; had.MatchTaint(taint) && had.Value == taint.Value {
			return had
		}
	}
	return nil
}
