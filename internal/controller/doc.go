// Package controller runs taint eviction and node health as one process, in place of
// kube-controller-manager's taint-eviction-controller and node-lifecycle-controller: which of the
// two run, leader election between replicas, journals, the health and metrics endpoints, and the
// shadow beside kube-controller-manager, which decides and writes nothing.
//
// What is decided is in packages eviction and nodehealth: cores without client, goroutine or clock.
// Their live packages run them in the loop that the scheduler uses, too (internal/kube/loop).
// Package journal plays again what they were told, and package shadow compares. Package rebalance,
// which decides which running pods to move, is no part of this process: berth rebalance runs it.
package controller
