// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command karpenter runs Karpenter's scheduler on the pods and the instance types of Karpenter's
// benchmark, and reports the cost of the requested nodes, for comparison with `berth what-if
// provision`. With -beside it also runs berth, and prints a table of both results. With -write it
// writes its inputs for other programs.
//
// It is a separate module, because Karpenter requires older Kubernetes libraries than Berth. `make
// bench-karpenter` runs it.
package main
