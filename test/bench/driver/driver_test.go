// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
)

func TestQuantiles(t *testing.T) {
	if got := Quantile[time.Duration](nil, 0.99); got != 0 {
		t.Errorf("p99 of nothing is %v", got)
	}
	var sorted []time.Duration
	for i := range 500 {
		sorted = append(sorted, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0.5: 251, 0.99: 496, 1: 500} {
		if got := Quantile(sorted, q); got != want {
			t.Errorf("quantile %v is the %d-th, want %d", q, got, want)
		}
	}
}

func TestEverythingIsDoneOnceUntilAnError(t *testing.T) {
	var done [1000]atomic.Int32
	if err := InParallel(t.Context(), len(done), func(_ context.Context, i int) error { done[i].Add(1); return nil }); err != nil {
		t.Fatal(err)
	}
	for i := range done {
		if n := done[i].Load(); n != 1 {
			t.Fatalf("%d was done %d times", i, n)
		}
	}

	broken := errors.New("broken")
	if err := InParallel(t.Context(), len(done), func(_ context.Context, i int) error {
		if i == 5 {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := InParallel(ctx, 1, func(context.Context, int) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("what was interrupted says %v", err)
	}
}

func TestWaitingSaysWhatIsMissing(t *testing.T) {
	c := &Cluster{Run: &Run{}, Client: fake.NewClientset()}
	err := c.Until(t.Context(), "the nodes", time.Millisecond, func() (string, error) { return Lacking(2, 3), nil })
	if err == nil || !strings.Contains(err.Error(), "the nodes: there are 2, not 3") {
		t.Errorf("got %v", err)
	}
	if err := c.Until(t.Context(), "the nodes", time.Hour, func() (string, error) { return Lacking(3, 3), nil }); err != nil {
		t.Error(err)
	}
}

func TestUnknownNamesAreRefused(t *testing.T) {
	if all, err := Names("-modes", "", "plain", "spread"); err != nil || len(all) > 0 || !Chosen(all, "spread") {
		t.Errorf("none: %v, %v", all, err)
	}
	if one, err := Names("-modes", "plain", "plain", "spread"); err != nil || Chosen(one, "spread") || !Chosen(one, "plain") {
		t.Errorf("one: %v, %v", one, err)
	}
	if _, err := Names("-modes", "plain,wide", "plain", "spread"); err == nil || err.Error() != `-modes: no "wide"; there are plain, spread` {
		t.Errorf("got %v", err)
	}
}

func TestTableWithoutRowsIsNotWritten(t *testing.T) {
	var out strings.Builder
	Table(&out, "Nothing", [][]string{{"name"}})
	if out.Len() > 0 {
		t.Errorf("wrote %q", out.String())
	}
	Table(&out, "Two", [][]string{{"name", "µs"}, {"a", "1,000"}})
	if want := "\n## Two\n\n| name | µs    |\n| ---- | ----- |\n| a    | 1,000 |\n"; out.String() != want {
		t.Errorf("wrote\n%s, want\n%s", out.String(), want)
	}
}

func TestMetricsAreAddedUp(t *testing.T) {
	metrics, err := ReadMetrics(strings.NewReader(`# TYPE pending gauge
pending{queue="active"} 2
pending{queue="gated"} 5
# TYPE requests counter
requests{code="429",verb="create"} 3
requests{code="429",verb="list"} 4
requests{code="200",verb="create"} 9
# TYPE took histogram
took_bucket{result="scheduled",le="+Inf"} 1
took_sum{result="scheduled"} 0.25
took_count{result="scheduled"} 1
took_bucket{result="unschedulable",le="+Inf"} 3
took_sum{result="unschedulable"} 1.5
took_count{result="unschedulable"} 3
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		metric string
		labels []string
		sum    float64
		count  uint64
	}{
		{"pending", []string{"queue=gated"}, 5, 0},
		{"requests", []string{"code=429", "verb=create"}, 3, 0},
		{"took", nil, 1.75, 4},
		{"took", []string{"result=scheduled"}, 0.25, 1},
		{"missing", nil, 0, 0},
	} {
		if sum, count := SumMetric(metrics[c.metric], c.labels...); sum != c.sum || count != c.count {
			t.Errorf("%s of %v: %v in %d, want %v in %d", c.metric, c.labels, sum, count, c.sum, c.count)
		}
	}
}

func TestShortNeverNeedsAnExponent(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1900: "1.9 µs", 999_400: "999 µs", 999_600: "1 ms", 78 * time.Millisecond: "78 ms",
		999_700 * time.Microsecond: "1 s", 1282 * time.Second: "1282 s",
	} {
		if got := Short(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

// TestKindsAreAsManyAsPromised verifies that the pods of each mode have the expected number of apps
// or sizes.
func TestKindsAreAsManyAsPromised(t *testing.T) {
	kinds := map[string]int{"plain": 10, "shapes": 500, "sizes-10000": 10_000, "spread": 10, "apps-1000-anti": 1000, "apps-10000-spread": 10_000}
	for _, m := range append(slices.Clone(Diverse), Plain, Shapes, Spread) {
		want := kinds[m.Name]
		if want == 0 {
			continue
		}
		delete(kinds, m.Name)
		seen := map[string]bool{}
		for i := range 2 * want {
			pod := m.NewPod(i)
			requests := pod.Spec.Containers[0].Resources.Requests
			seen[pod.Labels["app"]+requests.Cpu().String()+requests.Memory().String()] = true
		}
		if len(seen) != want {
			t.Errorf("%s: %d kinds, want %d", m.Name, len(seen), want)
		}
	}
	if len(kinds) > 0 {
		t.Errorf("no modes: %v", kinds)
	}
}
