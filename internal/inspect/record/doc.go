// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package record stores the state of a live cluster for offline inspection: a folder with the
// objects of all kinds that affect decisions, and their changes while the recording ran.
//
// It only reads from the cluster, in pages, and never reads secrets. Recordings are bounded in
// size, and an interrupted recording continues when it is restarted. The folder can be read
// wherever manifests can.
package record

// IndexFile is the file that identifies a folder as a recording.
const IndexFile = "recording.index"
