// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestNoGangHoldsTheLoop verifies that the attempt for a gang of any number of members, all of
// different classes, ends after a limited time. Retries lead to the same result as an unlimited
// attempt, and a pod created in the meantime does not wait for the gang.
func TestNoGangHoldsTheLoop(t *testing.T) {
	measuresTime(t)
	size := func(i int, p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse(fmt.Sprintf("%dm", 100+i))
	}
	host := func(i int, p *v1.Pod) { p.Spec.NodeSelector = map[string]string{v1.LabelHostname: fmt.Sprint("n", i)} }
	for _, row := range []struct {
		name             string
		members, nodes   int
		full             bool
		priority         int32
		change           func(i int, p *v1.Pod)
		bound, preempted bool
	}{
		{"each on a node of its own", 1000, 5000, false, 0, host, true, false},
		{"each on a node of its own, by preemption", 400, 5000, true, 10, host, false, true},
		{"of all sizes", 1000, 5000, false, 0, size, true, false},
		{"of all sizes, without room", 500, 5000, true, 0, size, false, false},
		{"of all sizes, by preemption", 1000, 5000, true, 10, size, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
			if err != nil {
				t.Fatal(err)
			}
			core.Step(begin, Follows{})
			for i := range row.nodes {
				n := aNode(fmt.Sprint("n", i), "16")
				core.Step(begin, Seen{Nodes, n})
				if row.full {
					p := aPod(fmt.Sprint("there-", i), "15950m")
					p.Spec.NodeName = n.Name
					core.Step(begin, Seen{Pods, p})
				}
			}
			g := gangOf("g", row.members)
			g.Spec.Priority = &row.priority
			core.Step(begin, Seen{PodGroups, g})
			for i := range row.members {
				p := aPod(fmt.Sprint("p", i), "1")
				p.Spec.SchedulingGroup, *p.Spec.Priority = &v1.PodSchedulingGroup{PodGroupName: new("g")}, row.priority
				row.change(i, p)
				core.Step(begin, Seen{Pods, p})
			}
			core.Step(begin, Led{})
			plain := aPod("plain", "10m")
			core.Step(begin, Seen{Pods, plain})
			var first, longest time.Duration
			bound, removed, attempts, text := 0, 0, 0, ""
			plainAfter := time.Duration(-1)
			for second := range 300 {
				now := begin.Add(time.Duration(second) * time.Second)
				for !core.Wake(now).After(now) && bound < row.members && removed == 0 {
					before := processorTime(t)
					actions := core.Step(now, Tick{})
					took := processorTime(t) - before
					longest = max(longest, took)
					if first == 0 {
						first = took
					}
					for _, action := range actions {
						switch a := action.(type) {
						case Bind:
							if a.Attempt.Pod.Name == plain.Name {
								plainAfter = now.Sub(begin)
							} else {
								bound++
							}
						case Remove:
							removed++
						case WriteGroup:
							text = a.Condition.Message
							attempts++
						}
					}
				}
			}
			t.Logf("%v at first, %v at most; %d bound, %d removed, %d words on the group, the last: %.300s", first, longest, bound, removed, attempts, text)
			if first > holdsTheLoop || longest > 5*holdsTheLoop {
				t.Errorf("the first attempt took %v of processor time, the longest %v", first, longest)
			}
			if row.bound != (bound == row.members) || row.preempted != (removed > 0) {
				t.Errorf("%d are bound, %d preempted", bound, removed)
			}
			if !row.bound && !row.preempted && !strings.Contains(text, "0 of ") {
				t.Errorf("it says %q", text)
			}
			if plainAfter > time.Second {
				t.Errorf("the other pod is bound after %v", plainAfter)
			}
		})
	}
}

// TestAForecastIsNotHurried verifies that an Unhurried core decides such a gang in one attempt.
func TestAForecastIsNotHurried(t *testing.T) {
	for _, unhurried := range []bool{false, true} {
		core, err := New(Options{
			Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}, Unhurried: unhurried,
		})
		if err != nil {
			t.Fatal(err)
		}
		const members = 500
		core.Step(begin, Follows{})
		for i := range 5000 {
			core.Step(begin, Seen{Nodes, aNode(fmt.Sprint("n", i), "16")})
		}
		core.Step(begin, Seen{PodGroups, gangOf("g", members)})
		for i := range members {
			p := aPod(fmt.Sprint("p", i), "1")
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
			p.Spec.NodeSelector = map[string]string{v1.LabelHostname: fmt.Sprint("n", i)}
			core.Step(begin, Seen{Pods, p})
		}
		core.Step(begin, Led{})
		bound := 0
		for _, action := range core.Step(begin, Tick{}) {
			if _, is := action.(Bind); is {
				bound++
			}
		}
		if unhurried != (bound == members) {
			t.Errorf("unhurried %t: %d are bound", unhurried, bound)
		}
	}
}

// TestAGangThatIsDeletedHoldsTheLoopOnce verifies that the first deletion among thousands of
// waiting pods gates the remaining pods, and that further deletions change nothing.
func TestAGangThatIsDeletedHoldsTheLoopOnce(t *testing.T) {
	const members = 5000
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	core.Step(begin, Seen{Nodes, aNode("n", "1")})
	core.Step(begin, Seen{PodGroups, gangOf("g", members)})
	var pods []*v1.Pod
	for i := range members {
		p := aPod(fmt.Sprint("p", i), "1")
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		pods = append(pods, p)
		core.Step(begin, Seen{Pods, p})
	}
	core.Step(begin, Tick{})
	before := processorTime(t)
	for _, p := range pods {
		core.Step(begin, Gone{Pods, p})
	}
	if took := processorTime(t) - before; took > time.Second {
		t.Errorf("%d pods take %v", members, took)
	}
}
