// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"flag"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
)

var (
	clusters = flag.Int("clusters", 500, "how many random clusters")
	first    = flag.Uint64("seed", 1, "the first cluster's seed; the others follow")
	named    = flag.String("plugins", "", "only these plugins, separated by commas")
	reports  = flag.Int("reports", 3, "how many differences are made small and shown")
)

func TestMain(m *testing.M) {
	flag.Parse()
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	klog.SetLogger(klog.Logger{})
	debug.SetGCPercent(400) // few objects stay in use, and many are created
	os.Exit(m.Run())
}

// TestSameAsUpstream verifies that Berth's verdicts, scores, messages, choices and victims equal
// those of the Kubernetes scheduler.
func TestSameAsUpstream(t *testing.T) {
	only := chosen(t)
	total, found := compareAll(t, only, *clusters)
	t.Logf("plugins: %s", strings.Join(withDefault(only), ", "))
	t.Log(total)
	slices.SortStableFunc(found, func(a, b Difference) int { return int(a.Seed) - int(b.Seed) })
	for _, d := range found[:min(len(found), 50)] {
		t.Log(d) // log unshrunk differences, because shrinking may fail
	}
	byKind := map[string]int{}
	for _, d := range found {
		byKind[d.Plugin+" "+d.What]++
	}
	shown := map[string]bool{}
	for _, d := range found {
		kind := d.Plugin + " " + d.What
		if shown[kind] || len(shown) >= *reports {
			continue
		}
		shown[kind] = true
		small, smallest := Shrink(t.Context(), Generate(d.Seed), d, only)
		t.Errorf("%d differences in %s, the first of them:\n%vin its smallest form:\n%v%s", byKind[kind], kind, d, smallest, small.YAML())
	}
	for kind, n := range byKind {
		if !shown[kind] {
			t.Errorf("%d differences in %s", n, kind)
		}
	}
}

func chosen(t *testing.T) []string {
	if *named == "" {
		return nil
	}
	only := strings.Split(*named, ",")
	for _, name := range only {
		if !slices.Contains(Plugins(), name) && name != "DefaultPreemption" {
			t.Fatalf("-plugins: no plugin %q; there are %s", name, strings.Join(Plugins(), ", "))
		}
	}
	return only
}

func withDefault(only []string) []string {
	if len(only) == 0 {
		return Plugins()
	}
	return only
}

// TestSameWithTolerationsThatCompare verifies the same with the feature gate for tolerations with
// the operators Gt and Lt.
func TestSameWithTolerationsThatCompare(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.TaintTolerationComparisonOperators, true)
	total, found := compareAll(t, []string{"NodeUnschedulable", "TaintToleration", "PodTopologySpread"}, max(1, *clusters/5))
	t.Log(total)
	for _, d := range found[:min(len(found), 20)] {
		t.Error(d)
	}
}

func compareAll(t *testing.T, only []string, clusters int) (total Totals, found []Difference) {
	var next atomic.Uint64
	var mu sync.Mutex
	var workers sync.WaitGroup
	end := time.Now().Add(time.Hour)
	if deadline, ok := t.Deadline(); ok {
		end = deadline.Add(-time.Minute) // leave time for shrinking
	}
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= uint64(clusters) || time.Now().After(end) {
					return
				}
				one, differences, err := Compare(context.Background(), Generate(*first+i), only)
				mu.Lock()
				if err != nil {
					t.Error(err)
				}
				total.Add(one)
				found = append(found, differences...)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return total, found
}
