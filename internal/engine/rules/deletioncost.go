package rules

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// DeletionCost is what a pod's annotation says, as the ReplicaSet controller reads it: what is no
// number of 32 bits, or begins with a plus or a needless zero, is 0. Of the pods of a ReplicaSet
// those with the lowest cost are deleted first when it shrinks; it may be negative.
func DeletionCost(p *v1.Pod) int32 {
	value := p.Annotations[v1.PodDeletionCost]
	cost, err := strconv.ParseInt(value, 10, 32)
	if err != nil || value[0] == '+' || value[0] == '0' {
		return 0
	}
	return int32(cost)
}
