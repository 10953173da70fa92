// Package plugins holds the scheduler's built-in plugins, one file each: which nodes a plugin
// rejects and why, how it scores the others, which events can help the pods that it rejected, and
// which fixes package explain may try. Verdicts, messages and scores are those of Kubernetes v1.37.
//
// A plugin is asked once per pod and cluster, and answers with a judge, which is then asked node by
// node. Judges only read, and are valid for the state of the cluster that they were made in. That
// is the plain way to decide: no caches, every node, written to be read. The fast way in package
// decide asks the same judges once for all nodes that cannot differ in the answer ([Filter.Reads]),
// and must come to the same results.
package plugins
