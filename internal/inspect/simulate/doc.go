// Package simulate answers what would become of the pods in a set of manifests: where each would
// go, who would have to make room for it and, for those that fit nowhere, why. It needs no cluster:
// the manifests are the cluster.
//
// The same cores decide as live: admission gives pods what the API server would, package decide
// finds their nodes, package eviction says when taints remove them. Here they run one after the
// other, in time that passes only as far as it is asked to, and chance comes from a seed; so the
// same manifests give the same bytes.
//
// It is plain data in and out, for the command line, for tests and for continuous integration; see
// [Run] and [Simulation].
package simulate
