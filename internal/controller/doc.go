// Package controller runs taint eviction and node health as one process, in place of
// kube-controller-manager's taint-eviction-controller and node-lifecycle-controller. It has the
// choice of controllers, leader election between replicas, journals, the health and metrics
// endpoints, and the shadow beside kube-controller-manager, which decides and writes nothing.
//
// Decisions are made in packages eviction and nodehealth: cores without client, goroutine or clock.
// Their live packages run them in the loop that the scheduler uses, too (internal/kube/loop).
// Package journal replays their events, and package shadow compares. Package rebalance decides
// which running pods to move, for the rebalance controller, which is off by default, and for berth
// rebalance.
package controller
