// Package cluster is the cluster as a decision sees it: nodes, the pods on them, and the other API
// objects that plugins ask for. It is plain data with one owner; it knows no client, no clock and
// no lock.
//
// Three things make it small and quick to decide on:
//
//   - Interning. What many pods share (everything but name, place and times) is one [PodClass];
//     what many nodes share (labels but for the host name, taints, images, size) is one [LabelSet],
//     [TaintSet], [ImageSet], [Size]. Equal contents are one pointer, so a question that depends on
//     them alone is answered once, not per pod and node.
//   - Columns. What changes with every placement is in [Room], one cache line per node, indexed by
//     [Node.Index].
//   - A log. Every change to a node is appended to [Cluster.Log]; a reader that was up to date at
//     some length of the log catches up by reading on.
//
// API objects are not kept: a node or pod that a library wants to see is reconstructed by
// [Node.Object] and [Pod.Object].
package cluster
