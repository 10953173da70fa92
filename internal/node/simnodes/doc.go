// Package simnodes runs simulated nodes on a cluster: thousands in one process,
// registered, heartbeating, running and ending pods as kubelets would.
//
// What the nodes do is decided in package kubelet. This one feeds it from one
// watch on nodes and one on bound pods, and carries out its actions with a
// bounded number of workers; one goroutine owns the fleet, none belongs to a
// node or a pod. It also writes the annotations that make nodes fail.
package simnodes
