// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// racks returns a core with racks of one node each, and a limit of work that suffices for a few
// racks. Room is reserved unless settings are given.
func racks(t *testing.T, count, limit int, change func(rack int, n *v1.Node) (there []*v1.Pod), settings ...func(*plugins.Profile)) *Core {
	t.Helper()
	profile := plugins.Default()
	if len(settings) == 0 {
		profile.Reservations = plugins.Reservations{For: time.Hour, Share: 1}
	}
	for _, set := range settings {
		set(profile)
	}
	core, err := New(Options{
		Profiles: []Profile{{Profile: profile}}, Groups: groups.Gates{Generic: true, Topology: true, Composite: true}, SearchLimit: limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	for i := range count {
		n := aNode(fmt.Sprint("n", i), "4")
		n.Labels["rack"] = fmt.Sprint("r", i)
		there := change(i, n)
		core.Step(begin, Seen{Nodes, n})
		for k, p := range there {
			p.Name, p.UID = fmt.Sprintf("there-%d-%d", i, k), ""
			p.UID = aPod(p.Name, "1").UID
			p.Spec.NodeName = n.Name
			core.Step(begin, Seen{Pods, p})
		}
	}
	return core
}

// comes creates a gang of four pods of one CPU each.
func comes(core *Core, change func(*v1.Pod)) {
	g := gangOf("g", 4)
	g.Spec.SchedulingConstraints = oneOf("rack")
	core.Step(begin, Seen{PodGroups, g})
	for i := range 4 {
		p := aPod(fmt.Sprint("p", i), "1")
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		change(p)
		core.Step(begin, Seen{Pods, p})
	}
	core.Step(begin, Led{})
}

// TestEveryDomainGetsItsTurn verifies that every domain is eventually tried. All domains have room,
// but only one has the disk. An attempt tries as many domains as its limit of work allows. Further
// attempts follow without an event, and one of them finds the domain with the disk.
func TestEveryDomainGetsItsTurn(t *testing.T) {
	const right = 57
	core := racks(t, 60, 1000, func(rack int, n *v1.Node) []*v1.Pod {
		if rack == right {
			n.Labels["disk"] = "ssd"
		}
		return nil
	})
	comes(core, func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	bound, text := 0, ""
	for second := 0; second < 3600 && bound == 0; second++ {
		for _, action := range core.Step(begin.Add(time.Duration(second)*time.Second), Tick{}) {
			switch a := action.(type) {
			case Bind:
				if bound++; a.Attempt.Node != fmt.Sprint("n", right) {
					t.Errorf("a pod goes to %s", a.Attempt.Node)
				}
			case WriteGroup:
				text = a.Condition.Message
			}
		}
		if second == 0 && (bound > 0 || !strings.HasSuffix(text, " Not all domains could be tried at once; the group is tried again after its back-off.")) {
			t.Fatalf("the effort lasts for all: %d are bound; %s", bound, text)
		}
	}
	if bound != 4 {
		t.Errorf("%d of 4 pods are bound after an hour; %s", bound, text)
	}
}

// TestATreeReservesRoomInOneRack verifies that a tree with a topology constraint gets a reservation
// among so many racks that the limit of work does not suffice to plan for the end of all pods. The
// decisions about pods name the tree or their group, and the trial of a group repeats the expected
// start.
func TestATreeReservesRoomInOneRack(t *testing.T) {
	core := racks(t, 120, 1000, func(int, *v1.Node) (pods []*v1.Pod) {
		for range 4 {
			pods = append(pods, aPod("", "1"))
			pods[len(pods)-1].Spec.ActiveDeadlineSeconds = new(int64(600))
		}
		return pods
	})
	root := compositeOf("root", 2)
	root.Spec.SchedulingConstraints = &schedulingv1alpha3.CompositePodGroupSchedulingConstraints{
		Topology: []schedulingv1alpha3.TopologyConstraint{{Key: "rack"}},
	}
	core.Step(begin, Seen{CompositePodGroups, root})
	for _, name := range []string{"g", "h"} {
		g := gangOf(name, 2)
		g.Spec.ParentCompositePodGroupName = &root.Name
		core.Step(begin, Seen{PodGroups, g})
		for i := range 2 {
			p := aPod(fmt.Sprint(name, i), "1")
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name}
			core.Step(begin, Seen{Pods, p})
		}
	}
	core.Step(begin, Led{})
	core.Step(begin, Tick{})
	if held := core.View().Reserved; len(held) != 1 || len(held[0].Nodes) != 4 {
		t.Errorf("%d reservations", len(held))
	}

	core.Step(begin, Seen{Pods, aPod("late", "1")})
	core.Step(begin, Tick{})
	late, own := core.Decision(cluster.Name{Namespace: "default", Name: "late"}), core.Decision(cluster.Name{Namespace: "default", Name: "g0"})
	if late.Held == nil || late.Held.Group.Name != "root" || !late.Held.Composite || own.Held == nil || own.Held.Group.Name != "g" || own.Held.Composite {
		t.Errorf("the room is closed to %+v, and held for %+v", late.Held, own.Held)
	}
	if trial := core.TryGroup(cluster.Name{Namespace: "default", Name: "h"}); trial.ExpectedStart.IsZero() || trial.ExpectedStart != own.Held.ExpectedStart {
		t.Errorf("expected starts: %v, %v", trial.ExpectedStart, own.Held.ExpectedStart)
	}
}

// TestTheMostPromisingDomainsComeFirst verifies that if the limit of work suffices for only one
// domain, room is reserved, or made by preemption, in the domain that requires the fewest or least
// important victims.
func TestTheMostPromisingDomainsComeFirst(t *testing.T) {
	const right = 17
	for name, there := range map[string]func(rack int) []*v1.Pod{
		"fewer pods have to end": func(rack int) []*v1.Pod {
			if rack == right {
				return []*v1.Pod{aPod("", "2"), aPod("", "2")}
			}
			return []*v1.Pod{aPod("", "1"), aPod("", "1"), aPod("", "2")}
		},
		"fewer pods are preempted": func(rack int) []*v1.Pod {
			pods := []*v1.Pod{aPod("", "2"), aPod("", "2")}
			if rack != right {
				pods = []*v1.Pod{aPod("", "1"), aPod("", "1"), aPod("", "2")}
			}
			for _, p := range pods {
				*p.Spec.Priority = -1
			}
			return pods
		},
		"less important pods are preempted": func(rack int) []*v1.Pod {
			p := aPod("", "4")
			if *p.Spec.Priority = -1; rack == right {
				*p.Spec.Priority = -2
			}
			return []*v1.Pod{p}
		},
	} {
		t.Run(name, func(t *testing.T) {
			core := racks(t, 30, 1, func(rack int, _ *v1.Node) []*v1.Pod { return there(rack) })
			comes(core, func(*v1.Pod) {})
			core.Step(begin, Tick{})
			nominated := core.View().Cluster.NominatedNodes()
			if len(nominated) != 1 || nominated[0].Name != fmt.Sprint("n", right) {
				t.Errorf("%d nodes are kept, and should be n%d alone", len(nominated), right)
				for _, n := range nominated {
					t.Log(n.Name)
				}
			}
		})
	}
}

// TestAGroupWhoseAttemptIsCutShortPreempts verifies that a group preempts even if its attempts end
// early. The only rack with the disk is full, and is among the last racks examined. The group is
// retried without an event until this rack is examined. A preemption delay counts from the first
// attempt.
func TestAGroupWhoseAttemptIsCutShortPreempts(t *testing.T) {
	const count, right = 6, 5
	for _, row := range []struct {
		name  string
		empty bool // all other racks are empty
		delay time.Duration
	}{
		{"no rack has room", false, 0},
		{"other racks have room", true, 0},
		{"other racks have room, and preemption is delayed", true, time.Minute},
	} {
		t.Run(row.name, func(t *testing.T) {
			core := racks(t, count, 1, func(rack int, n *v1.Node) []*v1.Pod {
				if rack == right {
					n.Labels["disk"] = "ssd"
				} else if row.empty {
					return nil
				}
				p := aPod("", "4")
				*p.Spec.Priority = -1
				return []*v1.Pod{p}
			}, func(p *plugins.Profile) { p.GentlePreemption, p.PreemptionDelay = row.delay > 0, row.delay })
			comes(core, func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
			for second := range 290 { // less than the maximum wait of five minutes
				after := time.Duration(second) * time.Second
				for _, action := range core.Step(begin.Add(after), Tick{}) {
					if _, is := action.(Remove); is {
						if after < row.delay {
							t.Errorf("it preempts after %s", after)
						}
						return
					}
				}
			}
			t.Error("it does not preempt")
		})
	}
}

// TestMembersThatDifferPreempt verifies that victims on full nodes are found for any number of
// alternating large and small members.
func TestMembersThatDifferPreempt(t *testing.T) {
	for members := 2; members <= 24; members++ {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		for i := range 10 {
			core.Step(begin, Seen{Nodes, aNode(fmt.Sprint("n", i), "4")})
			for k := range 4 {
				p := aPod(fmt.Sprintf("there-%d-%d", i, k), "1")
				p.Spec.NodeName, *p.Spec.Priority = fmt.Sprint("n", i), int32((7*i+k)%4)
				core.Step(begin, Seen{Pods, p})
			}
		}
		g := gangOf("g", members)
		g.Spec.Priority = new(int32(10))
		core.Step(begin, Seen{PodGroups, g})
		for i := range members {
			p := aPod(fmt.Sprint("p", i), []string{"1", "500m"}[i%2])
			p.Spec.SchedulingGroup, *p.Spec.Priority = &v1.PodSchedulingGroup{PodGroupName: new("g")}, 10
			core.Step(begin, Seen{Pods, p})
		}
		core.Step(begin, Led{})
		victims := 0
		for _, action := range core.Step(begin, Tick{}) {
			if _, is := action.(Remove); is {
				victims++
			}
		}
		if least := (3*members + 3) / 4; victims < least || victims > members {
			t.Errorf("for %d members %d pods leave, and should be %d at least", members, victims, least)
		}
	}
}

// TestATrialThatFitsInAnotherWay verifies that a trial reports that the group fits, without the
// earlier failure reason, if the planning of room finds a placement in a domain that the attempt
// did not try.
func TestATrialThatFitsInAnotherWay(t *testing.T) {
	core := racks(t, 60, 1000, func(rack int, n *v1.Node) []*v1.Pod {
		if rack == 57 {
			n.Labels["disk"] = "ssd"
		}
		return nil
	})
	comes(core, func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	fits := 0
	for range 300 {
		trial := core.TryGroup(cluster.Name{Namespace: "default", Name: "g"})
		placed := 0
		for _, p := range trial.Pods {
			if p.Node != "" {
				placed++
			}
		}
		if placed < 4 {
			continue
		}
		if fits++; trial.Fit != 4 || trial.Message != "" || len(trial.Victims) > 0 {
			t.Fatalf("all pods have nodes, and it says %+v", trial)
		}
	}
	if fits == 0 {
		t.Error("it never fits")
	}
}
