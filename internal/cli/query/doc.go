// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package query holds the common parts of the inspection commands: the source of the cluster's
// state (a live cluster, manifests, a recording), the scheduler configuration for the results, the
// repetition of queries, and the completion of names.
package query
