// Package live runs an eviction.Core against an API server: watches feed it, one goroutine owns it,
// and each of its requests, of which a bounded number is in flight, is a goroutine that ends with
// the answer. It has the metrics and events of kube-controller-manager's taint-eviction-controller.
package live
