// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package expander is an expander of the cluster autoscaler: for a scale-up, it chooses the node
// group with most placed pods, at the least cost. The query service of Berth places the pods on the
// additional nodes of each group.
package expander
