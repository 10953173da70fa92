// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package check examines a cluster before Berth is installed there, and whether an installation can
// work: versions, permissions, the flags of kube-scheduler and kube-controller-manager if visible,
// other components that decide about pods, blocking budgets, interfering webhooks.
//
// Judge decides from plain facts without a cluster; internal/inspect/check/clusterfacts reads the
// facts. Each finding is one line with the observation and, if needed, the remedy.
package check
