// Package simulate predicts what becomes of the pods in a set of manifests: where each one goes,
// which pods have to make room for it and, for those that fit nowhere, why. It needs no cluster:
// the manifests are the cluster.
//
// The same cores decide as live: package admission completes pods as the API server would, package
// decide finds their nodes, and package eviction determines when taints remove them. They run in
// virtual time, which advances only on request, and randomness comes from a seed. So the same
// manifests produce identical output.
//
// Input and output are plain data, for the command line, tests and continuous integration; see
// [Run] and [Simulation].
package simulate
