// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package evictiontest is an API server in memory and in virtual time that fails in all the ways of
// a real one: requests are lost before or after they were carried out, responses are late, watches
// lag, break, replay and list again, outages occur, and the controller is killed and restarted. All
// randomness derives from one seed.
//
// World runs an eviction.Core against it and knows the truth, so it can detect errors: a pod
// deleted without a reason, too early, too late, or never.
package evictiontest
