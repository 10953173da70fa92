// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package pluginparity compares out-of-tree plugins in upstream's scheduler and in Berth. Both call
// the same unmodified plugins on the random clusters of package conformance. A plugin must receive
// the same input, return the same results and have the same effects in both. Other tests run the
// examples on a live cluster.
package pluginparity
