// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// BenchmarkAnotherCore measures the pause when another core takes over 25,000 pending pods in a
// cluster of 5,000 nodes, as when a journal continues in another file.
func BenchmarkAnotherCore(b *testing.B) {
	const nodes, pods = 5000, 25_000
	var shown []Event
	for i := range nodes {
		shown = append(shown, Seen{Nodes, aNode(fmt.Sprint("n", i), "1")})
	}
	for i := range pods {
		pod := aPod(fmt.Sprint("p", i), "2")
		pod.UID = types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))
		if i%2 == 0 {
			pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "later"}}
		}
		shown = append(shown, Seen{Pods, pod})
	}
	start := func() *Core {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
		if err != nil {
			b.Fatal(err)
		}
		core.Step(begin, Follows{})
		for _, e := range shown {
			core.Step(begin, e)
		}
		core.Step(begin, Led{})
		return core
	}
	one, now := start(), begin
	for range pods {
		one.Step(now, Tick{})
	}
	if !one.Calm() {
		b.Fatalf("under way: %+v", one.Books())
	}
	var pauses []time.Duration
	for b.Loop() {
		b.StopTimer()
		other := start()
		runtime.GC()
		b.StartTimer()
		began := time.Now()
		saved := one.Save()
		other.Succeed(one)
		other.Step(now, saved)
		pauses = append(pauses, time.Since(began))
		one = other
	}
	slices.Sort(pauses)
	b.ReportMetric(float64(pauses[len(pauses)/2].Microseconds())/1e3, "median-ms")
	b.ReportMetric(float64(pauses[len(pauses)-1].Microseconds())/1e3, "worst-ms")
}
