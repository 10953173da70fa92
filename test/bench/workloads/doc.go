// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package workloads creates workloads on a cluster, follows their pods while a bench moves them,
// and reports the time without a ready pod ([Cluster.Play]).
package workloads
