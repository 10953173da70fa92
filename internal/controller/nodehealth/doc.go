// Package nodehealth decides what a node's state means for its pods: when a silent node counts as
// unreachable, which taints its conditions and its cordon become, and, zone by zone, how fast
// taints that evict are added when many nodes fail at once.
//
// Core is a state machine without client, goroutine or clock, like that of package eviction: nodes
// and Leases as seen go in, writes come out. It measures silence by its own clock from the moments
// at which it saw a sign of life, and never by times that a node wrote. It writes only on the
// version of a node that it has seen. And of the taints it touches only those that it manages.
// Package live runs it; package simulate runs it in virtual time.
package nodehealth
