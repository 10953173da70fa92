// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package survey reports on all pods and nodes of a cluster: the pending workloads and the reasons,
// the pods due for eviction and the times, and the pods that still fit. The reports are plain data,
// for people and programs. It does not write to the cluster.
package survey
