// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the built binaries as users run them: `berth up` in the foreground, stock
// kubectl (the built-in kubectl, and the system's if installed), and failures from wrong flags to
// kill -9.
//
// TestMain builds berth and berth-controlplane, or takes them from the folder named by BERTH_BIN,
// and starts one cluster shared by most tests. Tests that break nodes add separate simulated nodes
// to it.
package e2e
