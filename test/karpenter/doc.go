// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command karpenter runs Karpenter's own scheduler on the pods and the instance types of its
// benchmark, and reports the cost of the requested nodes: the counterpart of `berth what-if
// provision`. With -beside it also runs berth, and prints a table of both; with -write it writes
// its inputs for other programs.
//
// It is a separate module, since Karpenter is built on libraries of an older Kubernetes than Berth.
// `make bench-karpenter` runs it.
package main
