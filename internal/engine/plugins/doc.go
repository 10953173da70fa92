// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package plugins implements the scheduler's built-in plugins, one per file. Each plugin defines
// its rejections and their reasons, its scores, the events that can help rejected pods, and the
// fixes available to package explain. Verdicts, messages and scores match Kubernetes v1.37.
//
// A plugin is called once per pod and cluster and returns a judge, which is then called node by
// node. Judges only read, and are valid only for the state of the cluster at their creation. This
// plain path has no caches, visits every node, and is written for readability. The fast path in
// package decide calls the same judges once per set of nodes with equal inputs ([Filter.Reads]),
// and must produce the same results.
package plugins
