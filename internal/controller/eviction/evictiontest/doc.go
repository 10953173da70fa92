// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package evictiontest provides an in-memory API server in virtual time that fails in all the ways
// of a real one. Requests are lost before or after they are carried out, responses are late,
// watches lag, break, resume or list again, and outages occur. The controller is killed and
// restarted. All randomness derives from one seed.
//
// World runs an eviction.Core against this API server. It compares the evictions with the real
// state of the cluster, and detects pods deleted without a reason, early, late, or never.
package evictiontest
