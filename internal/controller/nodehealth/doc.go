// Package nodehealth decides what a node's state means for its pods: when a
// node that is silent counts as unreachable, which taints its conditions and
// its cordon become, and, zone by zone, how fast taints that evict are added
// when many nodes fail at once.
//
// Core is a state machine without client, goroutine or clock, like that of
// package eviction: nodes and leases as seen go in, writes come out. It judges
// silence by its own clock from the moments at which it saw a sign of life, and
// never by times that a node wrote; it writes only on the version of a node
// that it has seen; and of the taints it touches only those that it is there
// for. The package live runs it, simulate runs it in virtual time.
package nodehealth
