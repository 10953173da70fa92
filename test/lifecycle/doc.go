// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifecycle compares the effects of Berth's node health and taint eviction on nodes and
// pods with the effects of upstream's controllers, in random lives of a cluster. In a life, nodes
// fall silent and recover, singly, by zone and all together. They report not-ready conditions or
// pressure, and are cordoned, tainted, deleted and recreated. Meanwhile, pods are created and end.
//
// A life is played twice from the same script, in virtual time and on an in-memory API server: once
// with upstream's unmodified controllers and once with Berth's. The comparison covers all that an
// observer of the API sees: taints, conditions, the deletions of pods, and their times.
package lifecycle
