// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package driver holds the common parts of the benches: a working folder and its programs ([Run]),
// a cluster with its objects ([Cluster]), the compared schedulers ([Schedulers]), the events of
// pods in a watch ([Follow]), and tables ([Table]).
//
// A bench is a workload and the rows of its table. All measured programs run as separate processes.
// The usage of a process is taken from the kernel's accounting.
package driver
