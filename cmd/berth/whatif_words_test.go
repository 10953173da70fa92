// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestForecastingSaysHowFarItIs(t *testing.T) {
	for _, c := range []struct {
		elapsed, until time.Duration
		without        bool
		want           string
	}{
		{90 * time.Minute, 0, false, "forecasting until nothing more happens: 1h30m so far"},
		{90 * time.Second, time.Hour, false, "forecasting: 1m30s of 1h"},
		{90 * time.Second, 2 * time.Hour, true, "forecasting the same time without the operations: 1m30s of 2h"},
	} {
		if got := progressText(c.elapsed, c.until, c.without); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
