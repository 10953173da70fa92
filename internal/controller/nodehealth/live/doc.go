// Package live runs a nodehealth.Core against an API server: watches of nodes
// and leases feed it, one goroutine owns it, and its writes are made only on
// the versions of nodes that it saw. It keeps kube-controller-manager's
// node-lifecycle-controller's metrics and events.
package live
