// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestHintsForgetLargeClasses requires the caches of hints to be bounded by number and size.
func TestHintsForgetLargeClasses(t *testing.T) {
	for _, bulk := range []int{0, 1 << 20} {
		var l recentValues[bool]
		for range 3 * keep {
			class := &cluster.PodClass{Bulk: bulk}
			l.addValue(class, true)
			if !l.known[class] {
				t.Fatal("the latest class is not known")
			}
			if n := len(l.known); n > keep || n*bulk > cluster.MostBulk+2*bulk {
				t.Fatalf("%d classes of %d bytes are kept", n, bulk)
			}
		}
	}
}
