// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// memoryPressure admits every pod except BestEffort ones to nodes short of memory: it requested its
// memory, so it is not the cause of the shortage. kube-apiserver has this rule in a plugin disabled
// by default (PodTolerationRestriction); Berth always applies it.
func memoryPressure(r *request) error {
	if rules.IsBestEffort(r.pod) {
		return nil
	}
	// Merged rather than appended: a covering toleration makes it superfluous, like upstream.
	r.pod.Spec.Tolerations = mergeTolerations(r.pod.Spec.Tolerations, []v1.Toleration{{
		Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule,
	}})
	return nil
}
