// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package kueuecheck implements an admission check of Kueue: a workload becomes Ready when all its
// pods fit into the cluster, together with the pods of earlier workloads that are still unbound.
//
// A [Controller] is the only writer of the states of its checks. It keeps no state of its own:
// the states in the status of the workloads are the reservations.
package kueuecheck
