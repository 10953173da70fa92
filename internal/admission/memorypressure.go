package admission

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// memoryPressure lets every pod that is not BestEffort onto nodes short of
// memory: it asked for what it uses, so it is not what the node suffers from.
// kube-apiserver has this rule in a plugin that is off by default
// (PodTolerationRestriction); Berth applies it always.
func memoryPressure(r *request) error {
	if rules.IsBestEffort(r.pod) {
		return nil
	}
	// Merged and not appended: a toleration that covers it makes it superfluous, as upstream.
	r.pod.Spec.Tolerations = mergeTolerations(r.pod.Spec.Tolerations, []v1.Toleration{{
		Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule,
	}})
	return nil
}
