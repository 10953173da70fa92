// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package inplace replaces kube-scheduler and the node controllers of kube-controller-manager by
// Berth, in a program that imports the package and is built with the patches of package patch:
// upstream's integration tests and scheduler_perf.
//
// With BERTH_INPLACE=no in the environment, upstream's code runs, for comparison.
package inplace
