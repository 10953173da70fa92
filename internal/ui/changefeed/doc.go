// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package changefeed keeps package model's cluster up to date from the watches of an API server. It
// logs the changes, which any number of readers read at their own speed.
//
// It only reads: nodes, pods, events, pod groups, ResourceClaims and Leases, with get, list and
// watch. Lists are paged, watches resume at their last version, and objects are not retained. The
// changes within a tenth of a second become one Frame. The log is bounded: a reader that returns
// too late, or is too slow, gets the whole state instead. No reader can delay the watches or
// another reader.
package changefeed
