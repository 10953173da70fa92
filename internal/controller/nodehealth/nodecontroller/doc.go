// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodecontroller runs a nodehealth.Core against an API server: watches of nodes and Leases
// feed the Core, one goroutine owns it, and its writes are conditional on the observed versions of
// nodes. The package provides the metrics and events of kube-controller-manager's
// node-lifecycle-controller.
package nodecontroller
