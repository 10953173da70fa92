// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package rules defines the meaning of Kubernetes API fields to a scheduler: toleration of taints,
// the requests of a pod, terminal pods, a pod's priority and quality of service, and the validation
// of objects, with the error messages of the API server.
//
// Everything is a pure function of API objects: no client, no clock, no state. Scheduler, eviction,
// node health, admission, simulation and explanation all use this package, so that a field has the
// same meaning everywhere. If k8s.io publishes the rule as a library, the function here only calls
// the library with the options of kube-scheduler v1.37 with default feature gates.
package rules
