// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package controllershadow compares the decisions of kube-controller-manager's node-lifecycle and
// taint-eviction controllers with Berth's. It writes nothing, and reads only pods, nodes and
// Leases.
//
// Evictions follows the actual cluster and computes each pod's deadline with the core of package
// eviction. Nodes runs the core of package nodehealth on a copy of the nodes that includes Berth's
// writes but not the other controller's, so that each side decides independently. Both report the
// decisions of each side and their times to a Ledger. A decision of one side that the other does
// not follow within Patience is a difference.
package controllershadow
