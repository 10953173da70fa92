// Package evictionrequest decides what becomes of EvictionRequests (lifecycle.k8s.io, KEP-4563). It
// is both of the controllers that the API names: evictionrequest-controller, which makes one
// Eviction of all requests for a pod and lets its responders act one after the other, and
// imperative-eviction.k8s.io/evictor, the responder of last resort, which evicts through the
// Eviction API.
//
// Core is pure: events in, actions out. Nothing is remembered that the API does not have: a
// controller that is killed goes on from the statuses of the objects.
//
//   - core.go has the events, the actions and the queue of what is to be looked at
//   - table.go has the objects of a kind, each with the pod that it is about
//   - target.go decides the next action for one pod
//   - status.go is what the status of an Eviction is to be; request.go, that of a request
//   - responders.go orders the responders of a pod
package evictionrequest
