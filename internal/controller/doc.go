// Package controller runs node health and taint eviction as one process, in
// place of kube-controller-manager's node-lifecycle-controller and
// taint-eviction-controller: which of the two run, leader election between
// replicas, and the health and metrics endpoints. What is decided is in
// packages eviction and nodehealth.
//
// Beside it: feed (lists and watches), eventlog (events, written behind the
// work they tell of).
package controller
