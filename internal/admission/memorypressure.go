// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// memoryPressure admits pods to nodes short of memory, except BestEffort pods. The admitted pods
// requested their memory, so they are not the cause of the shortage. kube-apiserver has this rule
// in a plugin disabled by default (PodTolerationRestriction); Berth always applies it.
func memoryPressure(r *request) error {
	if rules.IsBestEffort(r.pod) {
		return nil
	}
	// Like upstream, merge the toleration, because a covering toleration makes it superfluous.
	r.pod.Spec.Tolerations = mergeTolerations(r.pod.Spec.Tolerations, []v1.Toleration{{
		Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule,
	}})
	return nil
}
