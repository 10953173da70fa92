// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain explains why a pod is on its node, why it is pending, or why it will be evicted,
// and suggests the smallest change that would help.
//
// It uses the engine rather than a model of it: package decide provides the plugins' verdicts and
// scores, preemption runs as in the scheduler, and package eviction provides deadlines. Berth
// suggests a change only after the engine, with the change made, has found a node for the pod. An
// explanation therefore cannot diverge from the scheduler's behavior.
//
// The input is a world of package simulate, read from a live cluster, a recording or manifests. The
// output is an [Explanation]: plain data for people (text), for programs (JSON, YAML) and for the
// dashboard. The package restores the world after each change.
package explain
