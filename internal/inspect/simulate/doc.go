// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulate predicts the fate of the pods in a set of manifests: their nodes, the pods
// preempted for them and, for pods that fit nowhere, the reason. It needs no cluster: the manifests
// are the cluster.
//
// It runs the same cores as the live scheduler: package admission completes pods like the API
// server, package decide finds their nodes, and package eviction determines when taints remove
// them. They run in virtual time, which advances only on request, with seeded randomness, so the
// same manifests produce identical output.
//
// Input and output are plain data, for the command line, tests and continuous integration; see
// [Run] and [Simulation].
package simulate
