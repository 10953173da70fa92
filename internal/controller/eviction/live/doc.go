// Package live runs an eviction.Core against an API server: watches feed it,
// one goroutine owns it, and each of its requests, a bounded number at a time,
// is a goroutine that ends with its answer. It keeps kube-controller-manager's
// taint-eviction-controller's metrics and events.
package live
