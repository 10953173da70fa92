// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// groupWorld is a core with pod groups in virtual time, and its metrics. Removals of pods are
// carried out immediately.
type groupWorld struct {
	t    *testing.T
	core *cycle.Core
	now  time.Time
	r    *Recorder
	pods map[types.UID]*v1.Pod
	seen map[string]string // lines at the last comparison
}

func newGroupWorld(t *testing.T) *groupWorld {
	w := &groupWorld{t: t, r: New(), now: time.Unix(1_700_000_000, 0), pods: map[types.UID]*v1.Pod{}}
	core, err := cycle.New(cycle.Options{
		Profiles: []cycle.Profile{{Profile: plugins.Default()}}, Observer: w.r, Stopwatch: func() time.Time { return w.now },
		Groups: groups.Gates{Generic: true, Topology: true, Policy: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.core = core
	w.r.Watch(core.Sizes)
	w.tell(cycle.Follows{})
	w.tell(cycle.Led{})
	return w
}

func (w *groupWorld) tell(e cycle.Event) {
	for _, action := range slices.Clone(w.core.Step(w.now, e)) {
		switch a := action.(type) {
		case cycle.Bind:
			w.tell(cycle.Answered{Ticket: a.Ticket})
		case cycle.Remove:
			gone := w.pods[a.Victim.UID]
			w.tell(cycle.Answered{Ticket: a.Ticket})
			w.tell(cycle.Gone{Kind: cycle.Pods, Object: gone})
		}
	}
}

// rest lets the core do everything it can do without waiting.
func (w *groupWorld) rest() {
	for n := 0; n < 100 && !w.core.Wake(w.now).After(w.now); n++ {
		w.tell(cycle.Tick{})
	}
}

func (w *groupWorld) node(name, cpu, rack string) {
	w.tell(cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, "rack": rack}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	}})
}

func (w *groupWorld) pod(name, group, node string, priority int32) {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "x"}},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName, Priority: &priority, NodeName: node,
			Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")},
			}}},
		},
	}
	if group != "" {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	}
	w.pods[p.UID] = p
	w.tell(cycle.Seen{Kind: cycle.Pods, Object: p})
}

func (w *groupWorld) group(name string, least, priority int32, change func(*schedulingv1beta1.PodGroupSpec)) {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: least}
	g.Spec.Priority = &priority
	if change != nil {
		change(&g.Spec)
	}
	w.tell(cycle.Seen{Kind: cycle.PodGroups, Object: g})
}

var metricLine = regexp.MustCompile(`(?m)^scheduler_(\S+) (\S+)$`)

// news verifies that the metrics with these name prefixes have exactly the expected changes since
// the last call. It skips sums and buckets of times.
func (w *groupWorld) news(step string, begins []string, want ...string) {
	w.t.Helper()
	now, changed := map[string]string{}, map[string]bool{}
	for _, line := range metricLine.FindAllStringSubmatch(scrape(w.t, w.r), -1) {
		name, value := line[1], line[2]
		if strings.Contains(name, "_bucket{") || strings.Contains(name, "seconds_sum") {
			continue
		}
		now[name] = value
		for _, begin := range begins {
			if strings.HasPrefix(name, begin) && w.seen[name] != value && (value != "0" || w.seen[name] != "") {
				changed[name+" "+value] = true
			}
		}
	}
	w.seen = now

	for _, line := range want {
		if !changed[line] {
			w.t.Errorf("%s: no new line %s", step, line)
		}
		delete(changed, line)
	}
	for line := range maps.Keys(changed) {
		w.t.Errorf("%s: unexpected line %s", step, line)
	}
}

// TestMetricsOfEntities verifies that a gang is gated, activated, and removed from the active queue
// as a single entity; a pod outside of it counts separately.
func TestMetricsOfEntities(t *testing.T) {
	w, begins := newGroupWorld(t), []string{"queue_incoming_", "queued_entities", "pending_pods"}
	w.node("a", "1", "r1")
	w.group("g", 2, 0, nil)
	w.pod("one", "g", "", 0)
	w.pod("alone", "", "", 0)
	w.news("one pod of two", begins,
		`queue_incoming_pods_total{event="UnscheduledPodAdd",queue="unschedulable"} 1`,
		`queue_incoming_entities_total{event="UnscheduledPodAdd",queue="unschedulable",type="podgroup"} 1`,
		`queue_incoming_pods_total{event="UnscheduledPodAdd",queue="active"} 1`,
		`queue_incoming_entities_total{event="UnscheduledPodAdd",queue="active",type="pod"} 1`,
		`queued_entities{queue="gated",type="podgroup"} 1`, `queued_entities{queue="active",type="pod"} 1`,
		`pending_pods{queue="gated"} 1`, `pending_pods{queue="active"} 1`)

	w.pod("two", "g", "", 0)
	w.news("both", begins,
		`queue_incoming_pods_total{event="UnscheduledPodAdd",queue="active"} 3`,
		`queue_incoming_entities_total{event="UnscheduledPodAdd",queue="active",type="podgroup"} 1`,
		`queued_entities{queue="gated",type="podgroup"} 0`, `queued_entities{queue="active",type="podgroup"} 1`,
		`pending_pods{queue="gated"} 0`, `pending_pods{queue="active"} 3`)

	w.rest()
	w.news("decided", begins,
		`queue_incoming_pods_total{event="ScheduleAttemptFailure",queue="unschedulable"} 2`,
		`queue_incoming_entities_total{event="ScheduleAttemptFailure",queue="unschedulable",type="podgroup"} 1`,
		`queued_entities{queue="active",type="podgroup"} 0`, `queued_entities{queue="active",type="pod"} 0`,
		`queued_entities{queue="unschedulable",type="podgroup"} 1`,
		`pending_pods{queue="active"} 0`, `pending_pods{queue="unschedulable"} 2`)
}

// TestMetricsOfPreemptionByGroups verifies that victims of preemption by a group are not counted as
// victims of preemption by pods. Groups evicted as a whole, and pods evicted against their budget,
// are counted.
func TestMetricsOfPreemptionByGroups(t *testing.T) {
	w := newGroupWorld(t)
	begins := []string{"workload_preemption_", "preemption_"}
	w.tell(cycle.Seen{Kind: cycle.DisruptionBudgets, Object: &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1},
	}})
	w.node("a", "4", "r1")
	w.group("whole", 2, 0, func(s *schedulingv1beta1.PodGroupSpec) {
		s.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
	})
	w.pod("w1", "whole", "a", 0)
	w.pod("w2", "whole", "a", 0)
	w.pod("low", "", "a", 0)
	w.pod("high", "", "a", 100)
	w.news("at first", begins)

	w.group("g", 3, 10, nil)
	for i := range 3 {
		w.pod(fmt.Sprint("g", i), "g", "", 10)
	}
	w.rest()
	w.news("a group takes all that is lower", begins,
		`workload_preemption_attempts_total{result="Success"} 1`,
		`workload_preemption_victims_sum 3`, `workload_preemption_victims_count 1`,
		`preemption_workload_disruptions_sum{preemptor="podgroup"} 1`, `preemption_workload_disruptions_count{preemptor="podgroup"} 1`,
		`preemption_pdb_violations_total{preemptor="podgroup"} 2`,
		`preemption_evaluation_duration_seconds_count{preemptor="podgroup",result="Success"} 1`,
		`preemption_execution_duration_seconds_count{preemptor="podgroup",result="success"} 1`,
		`preemption_goroutines_duration_seconds_count{result="success"} 1`, `preemption_goroutines_execution_total{result="success"} 1`)

	never := schedulingv1beta1.PreemptNever
	for name, change := range map[string]func(*schedulingv1beta1.PodGroupSpec){
		"lowest": nil, "never": func(s *schedulingv1beta1.PodGroupSpec) { s.PreemptionPolicy = &never },
	} {
		w.group(name, 1, 1, change)
		p := w.pods["g0"].DeepCopy()
		p.Name, p.UID, p.Spec.SchedulingGroup.PodGroupName, *p.Spec.Priority = name, types.UID(name), &name, 1
		if change != nil {
			p.Spec.PreemptionPolicy = new(v1.PreemptNever)
		}
		w.tell(cycle.Seen{Kind: cycle.Pods, Object: p})
	}
	w.rest()
	w.news("groups that find no victims", begins,
		`workload_preemption_attempts_total{result="UnschedulableAndUnresolvable"} 1`,
		`preemption_evaluation_duration_seconds_count{preemptor="podgroup",result="UnschedulableAndUnresolvable"} 1`,
		`workload_preemption_attempts_total{result="Unschedulable"} 1`)

	w.pod("boss", "", "", 50)
	w.rest()
	w.news("a pod", begins,
		`preemption_attempts_total 1`, `preemption_victims_sum 1`, `preemption_victims_count 1`,
		`preemption_evaluation_duration_seconds_count{preemptor="pod",result="Success"} 1`,
		`preemption_execution_duration_seconds_count{preemptor="pod",result="success"} 1`,
		`preemption_goroutines_duration_seconds_count{result="success"} 2`, `preemption_goroutines_execution_total{result="success"} 2`)
}

// TestMetricsOfPlacements verifies that every domain of the topology key is a placement, and
// feasible if the group fits there. Without a key there is one placement, all nodes.
func TestMetricsOfPlacements(t *testing.T) {
	w, begins := newGroupWorld(t), []string{"generated_placements", "placement_evaluation"}
	for i, cpu := range []string{"1", "2", "2"} {
		w.node(fmt.Sprint("n", i), cpu, fmt.Sprint("r", i))
	}
	rack := func(s *schedulingv1beta1.PodGroupSpec) {
		s.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: "rack"}}}
	}
	w.group("g", 2, 0, rack)
	w.pod("g1", "g", "", 0)
	w.pod("g2", "g", "", 0)
	w.pod("one", "", "n1", 0) // so that it does not fit on n1
	w.rest()
	w.news("three racks, one fits", begins,
		`generated_placements_total{profile="default-scheduler"} 3`,
		`placement_evaluations_total{profile="default-scheduler",result="infeasible"} 2`,
		`placement_evaluations_total{profile="default-scheduler",result="feasible"} 1`,
		`placement_evaluation_duration_seconds_count{profile="default-scheduler",result="infeasible"} 2`,
		`placement_evaluation_duration_seconds_count{profile="default-scheduler",result="feasible"} 1`)

	w.group("plain", 2, 0, nil)
	w.pod("p1", "plain", "", 0)
	w.pod("p2", "plain", "", 0)
	w.rest()
	w.news("no key", begins,
		`generated_placements_total{profile="default-scheduler"} 4`,
		`placement_evaluations_total{profile="default-scheduler",result="feasible"} 2`,
		`placement_evaluation_duration_seconds_count{profile="default-scheduler",result="feasible"} 2`)
}
