// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// BenchmarkReservation measures a step in which a gang does not fit on 5,000 full nodes and a
// reservation is planned. The gang consists of pods that will have room after other pods end, of
// pods of different sizes, or of pods too large for any node. BenchmarkGroupPreemption makes room
// for the same pods by preemption.
func BenchmarkReservation(b *testing.B)     { benchmarkFull(b, 0) }
func BenchmarkGroupPreemption(b *testing.B) { benchmarkFull(b, 10) }

func benchmarkFull(b *testing.B, priority int32) {
	for _, gang := range []struct {
		members int
		cpu     []string // requests of the pods, used in turn
	}{{2, []string{"1"}}, {1000, []string{"1"}}, {1000, []string{"1", "500m"}}, {2, []string{"17"}}, {100, []string{"17"}}} {
		for _, key := range []string{"", "rack", v1.LabelHostname} {
			b.Run(fmt.Sprintf("members=%d/cpu=%s/key=%s", gang.members, strings.Join(gang.cpu, "+"), key), func(b *testing.B) {
				var planned time.Duration
				for b.Loop() {
					b.StopTimer()
					core := fullWorld(b, 5000, gang.members, priority, gang.cpu, key)
					b.StartTimer()
					began := time.Now()
					core.Step(begin, Tick{})
					planned += time.Since(began)
				}
				b.ReportMetric(float64(planned.Microseconds())/1000/float64(b.N), "ms/attempt")
			})
		}
	}
}

// fullWorld returns a core with full nodes and a waiting gang. The ages and the priorities (0 to 3)
// of the running pods differ between the nodes.
func fullWorld(tb testing.TB, nodes, members int, priority int32, cpu []string, key string) *Core {
	tb.Helper()
	profile := plugins.Default()
	profile.Reservations = plugins.Reservations{For: time.Hour, Share: 1}
	core, err := New(Options{
		Profiles: []Profile{{Profile: profile}}, Groups: groups.Gates{Generic: true, Topology: true},
	})
	if err != nil {
		tb.Fatal(err)
	}
	core.Step(begin, Follows{})
	for i := range nodes {
		n := aNode(fmt.Sprint("n", i), "16")
		n.Labels["rack"] = fmt.Sprint("r", i/100)
		core.Step(begin, Seen{Nodes, n})
		for j := range 16 {
			p := aPod(fmt.Sprintf("small-%d-%d", i, j), "1")
			p.Spec.NodeName, p.CreationTimestamp.Time = n.Name, begin.Add(-time.Duration(i*7919%3600+j)*time.Second)
			*p.Spec.Priority = int32((i*7919 + j) % 4)
			core.Step(begin, Seen{Pods, p})
		}
	}
	g := gangOf("g", members)
	if key != "" {
		g.Spec.SchedulingConstraints = oneOf(key)
	}
	core.Step(begin, Seen{PodGroups, g})
	for i := range members {
		p := aPod(fmt.Sprint("p", i), cpu[i%len(cpu)])
		p.Spec.SchedulingGroup, *p.Spec.Priority = &v1.PodSchedulingGroup{PodGroupName: new("g")}, priority
		core.Step(begin, Seen{Pods, p})
	}
	core.Step(begin, Led{})
	return core
}

// TestManyDomains verifies that the only domain with room, or with preemptible pods, is found among
// more domains than an attempt tries. No other domain is tried.
func TestManyDomains(t *testing.T) {
	for _, lower := range []bool{false, true} {
		profile := plugins.Default()
		core, err := New(Options{
			Profiles: []Profile{{Profile: profile}}, Groups: groups.Gates{Generic: true, Topology: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		for i := range 150 {
			n := aNode(fmt.Sprint("n", i), "2")
			core.Step(begin, Seen{Nodes, n})
			p := aPod(fmt.Sprint("there", i), "2")
			if *p.Spec.Priority = 10; i == 77 && lower {
				*p.Spec.Priority = 0
			}
			if p.Spec.NodeName = n.Name; i != 77 || lower {
				core.Step(begin, Seen{Pods, p})
			}
		}
		g := gangOf("g", 2)
		g.Spec.SchedulingConstraints, g.Spec.Priority = oneOf(v1.LabelHostname), new(int32(10))
		core.Step(begin, Seen{PodGroups, g})
		for i := range 2 {
			p := aPod(fmt.Sprint("p", i), "1")
			p.Spec.SchedulingGroup, *p.Spec.Priority = &v1.PodSchedulingGroup{PodGroupName: new("g")}, 10
			core.Step(begin, Seen{Pods, p})
		}
		core.Step(begin, Led{})
		bound, removed := 0, 0
		for _, action := range core.Step(begin, Tick{}) {
			switch a := action.(type) {
			case Bind:
				if bound++; a.Attempt.Node != "n77" {
					t.Errorf("a pod goes to %s", a.Attempt.Node)
				}
			case Remove:
				if removed++; a.Victim.Name != "there77" {
					t.Errorf("%s has to leave", a.Victim.Name)
				}
			}
		}
		if want := map[bool][2]int{false: {2, 0}, true: {0, 1}}[lower]; bound != want[0] || removed != want[1] {
			t.Errorf("lower priority %t: %d are bound, %d have to leave", lower, bound, removed)
		}
	}
}
