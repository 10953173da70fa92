// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2eeviction tests node health and taint eviction on a real API server: stock kubectl adds
// taints, `berth controller` runs as a separate process that can be killed, nodes are objects with
// leases renewed by the tests, and a proxy between controller and API server fails, delays and cuts
// requests.
//
// Error-prone cases are a table of situations (situations_test.go) and a script with all spacings
// (flap_test.go); the flag -beside plays both against upstream's kube-controller-manager as well.
//
// Disturbed surges (surge_test.go) use simulated nodes and Berth's scheduler.
package e2eeviction
