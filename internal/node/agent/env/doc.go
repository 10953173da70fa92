// Package env says what a container is told: its command and arguments with $(VAR) expanded, its
// environment (envFrom, env with all that valueFrom knows, the services of its namespace), the name
// of its host, its /etc/hosts and how it resolves names.
//
// It decides from the pod and from what [Sources] and [Resolver] give, does no I/O of its own and
// imports no client. Values, precedence and error texts are the kubelet's of v1.36, as users see
// the texts in the status of a container that cannot be made (CreateContainerConfigError). Where
// the kubelet leaves order to chance (it collects variables in a map), the order here is fixed:
// envFrom by key, env as declared, services by name.
package env
