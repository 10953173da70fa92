// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import v1 "k8s.io/api/core/v1"

// CopyChanges copies from one pod to another all fields that the rules may change. A caller that
// applies the rules to a copy, for example in another version of the API, must copy back only these
// fields. The two pods then share the copied values. The webhook's patch has the same fields
// (podFields).
func CopyChanges(to, from *v1.PodSpec) {
	to.PriorityClassName, to.Priority, to.PreemptionPolicy = from.PriorityClassName, from.Priority, from.PreemptionPolicy
	to.Tolerations, to.Affinity, to.NodeSelector, to.Overhead = from.Tolerations, from.Affinity, from.NodeSelector, from.Overhead
}
