package admission

import v1 "k8s.io/api/core/v1"

// CopyChanges copies from one pod to another the fields that the rules may change. There are no
// others: who applies the rules to a copy, as in another version of the API, has to carry back only
// these. What is copied is shared between the two afterwards. The webhook's patch has the same
// fields (podFields).
func CopyChanges(to, from *v1.PodSpec) {
	to.PriorityClassName, to.Priority, to.PreemptionPolicy = from.PriorityClassName, from.Priority, from.PreemptionPolicy
	to.Tolerations, to.Affinity, to.NodeSelector, to.Overhead = from.Tolerations, from.Affinity, from.NodeSelector, from.Overhead
}
