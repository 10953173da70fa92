// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package snapshot reads all objects of a live cluster that affect decisions, for the commands
// explain, what-if and record.
//
// It sends only get, list and watch requests, never for secrets. Any other request through its
// connection fails before it leaves the process. Lists are paged, and in protobuf. A kind that is
// forbidden, or that the API server does not serve, is left out and reported, unless every result
// requires it.
package snapshot
