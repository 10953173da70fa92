// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package pluginparity compares how plugins from outside fare in upstream's scheduler and in Berth:
// one and the same plugin, compiled in unchanged, is asked by both about the random clusters of
// package conformance, and must see the same, say the same, and have the same done to it. Its other
// tests run the examples against a live cluster.
package pluginparity
