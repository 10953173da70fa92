// Package extender talks to HTTP extenders: processes beside the scheduler that filter and score
// nodes for a pod, spare pods from preemption, or bind, as configured in a
// KubeSchedulerConfiguration. An [Extender] is one such configuration, ready to be called, in the
// wire format of k8s.io/kube-scheduler/extender/v1.
//
// One request asks an extender about many nodes. It is sent whole nodes or, if it keeps its own
// view of the cluster (nodeCacheCapable), their names. If an ignorable extender fails, the
// scheduler continues without it; the caller sees to that.
package extender
