// Package simulate answers what would become of the pods in a set of manifests: where each would
// go, which pods would have to make room for it and, for those that fit nowhere, why. It needs no
// cluster: the manifests are the cluster.
//
// The same cores decide as live: admission gives pods what the API server would, package decide
// finds their nodes, package eviction says when taints remove them. They run in virtual time, which
// passes only as far as it is asked to, and randomness comes from a seed. So the same manifests
// give the same bytes.
//
// Input and output are plain data, for the command line, tests and continuous integration; see
// [Run] and [Simulation].
package simulate
