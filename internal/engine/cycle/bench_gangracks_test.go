// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	"k8s.io/apimachinery/pkg/api/resource"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

// partlyFilled returns a core with 5,000 nodes in 50 racks and the given number of gangs totaling
// 1,000 pods. The core has not seen their PodGroups yet. Pods of equal priority run on the nodes
// and leave room for the gangs in 30 of the racks. If lower-priority pods are added, the gangs fit
// only if 200 pods are preempted. running holds all pods on nodes.
func partlyFilled(tb testing.TB, groups int, lower bool) (core *Core, running map[string]*v1.Pod) {
	core, running = gangWorld(tb, 0, 0, "rack"), map[string]*v1.Pod{}
	high, low := int32(1000), int32(0)
	sized := func(name string, cpu int, memory string) *v1.Pod {
		p := aPod(name, fmt.Sprint(cpu))
		p.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse(memory)
		return p
	}
	for i := range 1000 {
		p := sized(fmt.Sprint("p", i), 2, "4Gi")
		p.Spec.Priority = &high
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new(fmt.Sprint("g", i%groups))}
		core.Step(begin, Seen{Pods, p})
	}
	run := func(node, name string, cpu int, memory string, priority *int32) {
		p := sized(name, cpu, memory)
		p.Spec.NodeName, p.Spec.Priority = node, priority
		running[name] = p
		core.Step(begin, Seen{Pods, p})
	}
	for i := range 5000 {
		n := aNode(fmt.Sprint("n", i), "32")
		n.Labels["rack"] = fmt.Sprint("r", i%50)
		core.Step(begin, Seen{Nodes, n})
		used, kind := 0, i%5
		if kind > 0 {
			used = []int{22, 14, 6, 2}[kind-1] + i/50%3*2
		}
		for j := range 2 {
			run(n.Name, fmt.Sprint("high", i, "-", j), used/2, []string{"0", "8Gi", "6Gi", "6Gi", "4Gi"}[kind], &high)
		}
		for j := 0; lower && j < (32-used)/8; j++ {
			run(n.Name, fmt.Sprint("low", i, "-", j), 8, "200Mi", &low)
		}
	}
	return core, running
}

// BenchmarkGangInPartlyFilledRacks decides a gang of 1,000 pods confined to one of 50 racks: once
// where it fits immediately, and once where it must preempt and is decided a second time.
func BenchmarkGangInPartlyFilledRacks(b *testing.B) {
	inPartlyFilledRacks(b, 1, func(core *Core) {
		g := gangOf("g0", 1000)
		g.Spec.SchedulingConstraints, g.Spec.Priority = oneOf("rack"), new(int32(1000))
		core.Step(begin, Seen{PodGroups, g})
	})
}

// BenchmarkTreeInPartlyFilledRacks is like BenchmarkGangInPartlyFilledRacks, for a tree of four
// gangs confined to one rack.
func BenchmarkTreeInPartlyFilledRacks(b *testing.B) {
	inPartlyFilledRacks(b, 4, func(core *Core) {
		root := compositeOf("root", 4)
		root.Spec.Priority = new(int32(1000))
		root.Spec.SchedulingConstraints = &schedulingv1alpha3.CompositePodGroupSchedulingConstraints{
			Topology: []schedulingv1alpha3.TopologyConstraint{{Key: "rack"}}}
		core.Step(begin, Seen{CompositePodGroups, root})
		for i := range 4 {
			g := gangOf(fmt.Sprint("g", i), 250)
			g.Spec.ParentCompositePodGroupName = &root.Name
			core.Step(begin, Seen{PodGroups, g})
		}
	})
}

func inPartlyFilledRacks(b *testing.B, groups int, tellGroups func(*Core)) {
	for _, lower := range []bool{false, true} {
		b.Run(fmt.Sprintf("preempts=%v", lower), func(b *testing.B) {
			var first, last time.Duration
			victims := 0
			for b.Loop() {
				b.StopTimer()
				core, running := partlyFilled(b, groups, lower)
				tellGroups(core)
				b.StartTimer()
				began := time.Now()
				actions := slices.Clone(core.Step(begin, Tick{}))
				took := time.Since(began)
				first, last = first+took, last+took
				if lower {
					for _, action := range actions {
						if remove, ok := action.(Remove); ok {
							victims++
							core.Step(begin, Answered{Ticket: remove.Ticket})
							core.Step(begin, Gone{Pods, running[remove.Victim.Name]})
						}
					}
					began = time.Now()
					actions = slices.Clone(core.Step(begin.Add(2*time.Second), Tick{}))
					last += time.Since(began) - took
				}
				bound := 0
				for _, action := range actions {
					if _, ok := action.(Bind); ok {
						bound++
					}
				}
				if bound != 1000 {
					b.Fatalf("%d pods are bound", bound)
				}
			}
			b.ReportMetric(float64(first.Microseconds())/1000/float64(b.N), "ms/first-decision")
			b.ReportMetric(float64(last.Microseconds())/1000/float64(b.N), "ms/last-decision")
			b.ReportMetric(float64(victims)/float64(b.N), "victims")
		})
	}
}
