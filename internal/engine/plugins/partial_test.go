package plugins

import (
	"slices"
	"testing"
)

// Which of two plugins rejects a pod first goes by the order at PreFilter, also for one that is at
// PreFilter alone.
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
