// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// gangWorld returns a core with a waiting gang and with nodes in racks of a hundred.
func gangWorld(tb testing.TB, nodes, members int, key string) *Core {
	tb.Helper()
	core, err := New(Options{
		Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: true, Composite: true},
	})
	if err != nil {
		tb.Fatal(err)
	}
	core.Step(begin, Follows{})
	for i := range nodes {
		n := aNode(fmt.Sprint("n", i), "16")
		n.Labels["rack"] = fmt.Sprint("r", i/100)
		core.Step(begin, Seen{Nodes, n})
	}
	g := gangOf("g", members)
	if key != "" {
		g.Spec.SchedulingConstraints = oneOf(key)
	}
	core.Step(begin, Seen{PodGroups, g})
	for i := range members {
		p := aPod(fmt.Sprint("p", i), "1")
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		core.Step(begin, Seen{Pods, p})
	}
	core.Step(begin, Led{})
	return core
}

// BenchmarkGang decides a gang of 1,000 pods on 5,000 nodes in one step, and then processes the
// binding of each pod.
func BenchmarkGang(b *testing.B) {
	for _, key := range []string{"", "rack"} {
		b.Run("key="+key, func(b *testing.B) {
			var decided, bound time.Duration
			for b.Loop() {
				b.StopTimer()
				core := gangWorld(b, 5000, 1000, key)
				b.StartTimer()
				began := time.Now()
				actions := slices.Clone(core.Step(begin, Tick{}))
				decided += time.Since(began)
				began = time.Now()
				count := 0
				for _, a := range actions {
					if bind, ok := a.(Bind); ok {
						count++
						core.Step(begin, Answered{Ticket: bind.Ticket})
					}
				}
				bound += time.Since(began)
				if count != 1000 {
					b.Fatalf("%d pods are bound", count)
				}
			}
			b.ReportMetric(float64(decided.Microseconds())/1000/float64(b.N), "ms/decision")
			b.ReportMetric(float64(bound.Microseconds())/1000/float64(b.N), "ms/bound")
		})
	}
}

// BenchmarkTwoGangs decides two gangs of 1,000 pods on 5,000 nodes, with room for only one, and
// processes the bindings of its pods. It reports the duration of the longest step.
func BenchmarkTwoGangs(b *testing.B) {
	var longest time.Duration
	for b.Loop() {
		b.StopTimer()
		core := gangWorld(b, 0, 1000, "rack")
		second := gangOf("h", 1000)
		second.Spec.SchedulingConstraints = oneOf("rack")
		core.Step(begin, Seen{PodGroups, second})
		for i := range 1000 {
			p := aPod(fmt.Sprint("q", i), "1")
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("h")}
			core.Step(begin, Seen{Pods, p})
		}
		for i := range 5000 { // only the first rack has room
			cpu := "1"
			if i < 100 {
				cpu = "16"
			}
			n := aNode(fmt.Sprint("n", i), cpu)
			n.Labels["rack"] = fmt.Sprint("r", i/100)
			core.Step(begin, Seen{Nodes, n})
		}
		now := begin
		step := func(e Event) []Action {
			began := time.Now()
			actions := slices.Clone(core.Step(now, e))
			longest = max(longest, time.Since(began))
			return actions
		}
		b.StartTimer()
		bound := 0
		for range 20 {
			now = now.Add(time.Second)
			for _, a := range step(Tick{}) {
				if bind, ok := a.(Bind); ok {
					bound++
					step(Answered{Ticket: bind.Ticket})
					p := bind.Attempt.Pod.DeepCopy()
					p.Spec.NodeName = bind.Attempt.Node
					step(Seen{Pods, p})
				}
			}
		}
		if bound != 1000 {
			b.Fatalf("%d pods are bound", bound)
		}
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest")
}
