// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package reconstruct restores the cluster state in which another scheduler decided a pod, so that
// a core in shadow mode can compare its own evaluation of the nodes with that scheduler's choice.
// It delays the events of the core; see [New].
package reconstruct
