// Package env computes a container's view of its surroundings: its command and arguments with
// $(VAR) expanded, its environment (envFrom, env with all kinds of valueFrom, the Services of its
// namespace), its host name, its /etc/hosts and its DNS configuration.
//
// It works from the pod and from what [Sources] and [Resolver] provide, does no I/O of its own and
// imports no client. Values, precedence and error messages are those of the kubelet v1.36, whose
// messages users see in the status of a container that cannot be created
// (CreateContainerConfigError). Where the kubelet's order is random (it collects variables in a
// map), the order here is fixed: envFrom by key, env as declared, Services by name.
package env
