// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package snapshot reads all objects of a live cluster that decisions depend on, for the commands
// that answer questions: explain, what-if, record.
//
// It only reads: get, list and watch, never secrets. Any other request through its connection fails
// before it leaves the process. Lists are paged, and in protobuf. A kind that may not be read, or
// that the API server does not serve, is left out and reported, unless there is no answer without
// it.
package snapshot
