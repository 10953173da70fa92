// Package extender speaks to HTTP extenders: processes beside the scheduler that take nodes away
// from a pod, score them, spare pods from preemption, or bind, as they are configured in a
// KubeSchedulerConfiguration. An [Extender] is what such a configuration says, ready to be asked,
// in the wire format of k8s.io/kube-scheduler/extender/v1.
//
// An extender is asked about many nodes in one request. It is told the whole nodes or, if it keeps
// its own view of the cluster (nodeCacheCapable), their names. When one that may be ignored fails,
// the scheduler goes on without it; that is for the caller to see to.
package extender
