// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster models the cluster as seen by a decision: nodes, their pods, and the other API
// objects used by plugins. It is plain data with one owner, without a client, a clock or a lock.
//
// Three techniques keep it small and decisions fast:
//
//   - Interning. The shared part of many pods (everything but name, place and times) is one
//     [PodClass]; the shared parts of many nodes (labels except for the host name, taints, images,
//     size) are one [LabelSet], [TaintSet], [ImageSet], [Size]. Equal contents share one pointer,
//     so a result that depends only on the contents is computed once, rather than for each pod and
//     node.
//   - Columns. The state changed by every placement is in [Room], one cache line per node, indexed
//     by [Node.Index].
//   - A log. Every change to a node is appended to [Cluster.Log]; a reader that was up to date at
//     some length of the log catches up by reading on.
//
// API objects are not kept: [Node.Object] and [Pod.Object] reconstruct a node or pod for libraries.
package cluster
