package driver

import (
	"context"
	"errors"
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
