// Package e2eeviction shows node health and taint eviction on a real API
// server: stock kubectl puts taints on, `berth controller` runs as a process of
// its own that can be killed, nodes are objects whose leases the tests renew,
// and a proxy between controller and API server fails, delays and cuts.
//
// What is easily got wrong is a table of situations (situations_test.go) and a
// script with all spacings (flap_test.go); with -beside both are played against
// upstream's kube-controller-manager as well.
//
// Surges that something disturbs (surge_test.go) have simulated nodes and Berth's scheduler.
package e2eeviction
