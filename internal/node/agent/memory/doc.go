// Package memory decides from which NUMA nodes a container's memory and huge pages come, as the
// static policy of the kubelet's memory manager: a container of a Guaranteed pod gets what it
// requests from as few nodes as possible, and a node is either used by containers on their own or
// as part of one group of nodes.
//
// It is pure: a State is a value, Draft derives the next one, and Encode and Decode are the
// kubelet's checkpoint file.
package memory
