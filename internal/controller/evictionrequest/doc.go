// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package evictionrequest implements EvictionRequests (lifecycle.k8s.io, KEP-4563). It contains
// both controllers defined by the API: evictionrequest-controller, which creates one Eviction for
// all requests of a pod and gives each responder its turn, and imperative-eviction.k8s.io/evictor,
// the responder of last resort, which uses the Eviction API.
//
// Core is pure: events in, actions out. It keeps no state outside the API, so a restarted
// controller continues from the statuses of the objects.
//
//   - core.go contains the event loop, the actions and the queue of targets
//   - table.go contains the objects of one kind and their targets
//   - target.go decides the next action for one pod
//   - status.go computes the statuses of Evictions and of requests
//   - responders.go orders the responders of a pod
package evictionrequest
