// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2eeviction tests node health and taint eviction on a real API server: stock kubectl adds
// taints, `berth controller` runs as a separate process that can be killed, nodes are objects whose
// Leases the tests renew, and a proxy between the controller and the API server delays requests,
// breaks connections and returns errors.
//
// There is a table of error-prone situations (situations_test.go), and a script that adds and
// removes taints at all intervals (flap_test.go). With the flag -beside, both also run against
// upstream's kube-controller-manager.
//
// The tests of disturbed surges (surge_test.go) use simulated nodes and Berth's scheduler.
package e2eeviction
