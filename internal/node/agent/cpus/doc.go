// Package cpus decides which CPUs a container may run on, as the static policy of the kubelet's CPU
// manager: a container that requests whole CPUs in a Guaranteed pod has CPUs of its own, packed
// onto as few sockets, NUMA nodes and cores as possible; all others share the rest, the pool.
//
// It is pure: a State is a value, Draft derives the next one, and Encode and Decode are the
// kubelet's checkpoint file. The CPUs' arrangement comes from package topology.
package cpus
