// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package pluginparity compares out-of-tree plugins in upstream's scheduler and in Berth: both call
// the same plugin, compiled in unchanged, on the random clusters of package conformance. It must
// receive the same input, return the same results, and have the same effects. Its other tests run
// the examples against a live cluster.
package pluginparity
