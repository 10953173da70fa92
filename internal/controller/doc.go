// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller runs taint eviction and node health as one process, replacing
// kube-controller-manager's taint-eviction-controller and node-lifecycle-controller. It provides
// the choice of controllers, leader election between replicas, journals, the health and metrics
// endpoints, and the shadow, which runs in parallel to kube-controller-manager without deciding or
// writing anything.
//
// Packages eviction and nodehealth make the decisions: their cores have no client, goroutine or
// clock. Packages evictioncontroller and nodecontroller run them in the loop shared with the
// scheduler (internal/kube/loop). Package controllerjournal records and replays their events, and
// package controllershadow compares their decisions with kube-controller-manager's. Package
// rebalance chooses running pods to move, for the rebalance controller, which is off by default,
// and for berth rebalance.
package controller
