// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pacing

import (
	"testing"
	"time"
)

func TestZeroIsNoTimeToSooner(t *testing.T) {
	early, late, none := time.Unix(1, 0), time.Unix(2, 0), time.Time{}
	for _, row := range []struct{ a, b, want time.Time }{
		{early, late, early}, {late, early, early}, {none, late, late}, {late, none, late}, {none, none, none},
	} {
		if got := Sooner(row.a, row.b); !got.Equal(row.want) {
			t.Errorf("%s and %s: got %s, want %s", row.a, row.b, got, row.want)
		}
	}
}
