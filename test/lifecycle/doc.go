// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifecycle compares the effects on nodes and pods of Berth's node health and taint
// eviction with those of upstream's controllers, in random lives of a cluster: nodes fall silent
// and recover, singly, by zone and all together, report not-ready conditions or pressure, are
// cordoned, tainted, deleted and recreated, while pods are created and end.
//
// A life is played twice from the same script, each time in virtual time and on an in-memory API
// server: with upstream's unmodified controllers, and with Berth's. The comparison covers
// everything visible to an observer of the API: taints, conditions, marked and deleted pods, and
// the times.
package lifecycle
