// Package live runs a nodehealth.Core against an API server: watches of nodes and Leases feed it,
// one goroutine owns it, and its writes are made only on the versions of nodes that it has seen. It
// has the metrics and events of kube-controller-manager's node-lifecycle-controller.
package live
