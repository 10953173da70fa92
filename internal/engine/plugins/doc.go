// Package plugins holds the scheduler's own plugins, one file each: which nodes a plugin rejects
// and why, and how it scores the others. Verdicts, words and scores are those of Kubernetes v1.36.
//
// A plugin is asked once for a pod and the whole cluster; what it answers is a small judge that is
// then asked node by node. Judges only read, and hold for the state of the cluster that they were
// made in. This is the plain way to decide: no caches, every node, written to be read. The fast
// path of package decide asks the same judges once for all nodes that cannot differ in the answer
// ([Filter.Reads]), and must otherwise come to the same results.
package plugins
