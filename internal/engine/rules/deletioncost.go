// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// DeletionCost returns the value of a pod's annotation for the deletion cost, parsed as in the
// ReplicaSet controller. The cost is 0 if the value is not a 32-bit integer, or if it has a plus
// sign or a redundant leading zero. When a ReplicaSet shrinks, its pods with the lowest cost are
// deleted first. The cost may be negative.
func DeletionCost(p *v1.Pod) int32 {
	value := p.Annotations[v1.PodDeletionCost]
	cost, err := strconv.ParseInt(value, 10, 32)
	if err != nil || value[0] == '+' || value[0] == '0' {
		return 0
	}
	return int32(cost)
}
