// Package cluster is what berth up starts: a control plane, the scheduler and the controllers, the
// dashboard, simulated nodes and, if that is wanted, this machine as a node. It says which
// processes these are and with which flags they run.
package cluster
