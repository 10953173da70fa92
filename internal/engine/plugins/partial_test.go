// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"
	"testing"
)

// The order at PreFilter determines which of two plugins rejects a pod first, even for a plugin
// enabled only at PreFilter.
func TestFiltersStandWhereTheyDoAtPreFilter(t *testing.T) {
	for _, row := range []struct{ preFilter, filter, want []string }{
		{[]string{"a", "b", "c"}, []string{"b", "c"}, []string{"a", "b", "c"}},
		{[]string{"a", "b", "c"}, []string{"a", "c"}, []string{"a", "b", "c"}},
		{[]string{"a", "b", "c"}, []string{"x", "a"}, []string{"x", "a", "b", "c"}},
		{[]string{"a", "b"}, nil, []string{"a", "b"}},
		{nil, []string{"x", "y"}, []string{"x", "y"}},
	} {
		p := &Profile{At: map[Point][]string{PreFilter: row.preFilter, Filters: row.filter}}
		if got := p.filterNames(); !slices.Equal(got, row.want) {
			t.Errorf("at PreFilter %v, at Filter %v: asked as %v, want %v", row.preFilter, row.filter, got, row.want)
		}
	}
}
