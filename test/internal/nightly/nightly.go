// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package nightly marks tests that are too slow for every change. make test runs tests in short
// mode, and make test-long runs all of them.
package nightly

import "testing"

// Only skips a test in short mode.
func Only(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("too slow for every change: make test-long runs it")
	}
}
