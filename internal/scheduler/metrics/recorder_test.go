// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// scrape returns the text served to Prometheus.
func scrape(t *testing.T, r *Recorder) string {
	t.Helper()
	w := httptest.NewRecorder()
	metrics.HandlerFor(r, metrics.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// TestNamesAndLabelsAreKubeSchedulers verifies the lines used by dashboards and alerts.
func TestNamesAndLabelsAreKubeSchedulers(t *testing.T) {
	r := New()
	r.Attempted("default-scheduler", cycle.Scheduled, 3*time.Millisecond)
	r.Attempted("default-scheduler", cycle.Unschedulable, time.Millisecond)
	r.Decided(time.Millisecond)
	r.AttemptedGroup("default-scheduler", cycle.WaitingOnPreemption, time.Millisecond)
	r.DecidedGroup(time.Millisecond)
	r.Ran("default-scheduler", plugins.Permit, true, time.Millisecond)
	r.Ran("default-scheduler", plugins.PreBind, false, time.Millisecond)
	r.RanPlugin("VolumeBinding", plugins.PreBind, true, time.Millisecond)
	r.Queued(queue.Active, "UnscheduledPodAdd")
	r.Queued(queue.Waiting, "ScheduleAttemptFailure")
	r.Bound(1, 20*time.Millisecond, false)
	r.Bound(17, time.Minute, true)
	r.Rejected("NodeResourcesFit", "default-scheduler", 1)
	r.Rejected("NodeResourcesFit", "default-scheduler", 1)
	r.Rejected("NodeResourcesFit", "default-scheduler", -1)
	r.Queued(queue.Gated, "UnscheduledPodAdd")
	r.EntityQueued(queue.Active, "UnscheduledPodAdd", false)
	r.EntityQueued(queue.Waiting, "ScheduleAttemptFailure", false)
	r.EntityQueued(queue.Gated, "UnscheduledPodAdd", true)
	r.EntityQueued(queue.Backoff, "NodeAdd", true)
	r.EntityQueued(queue.Backoff, "ScheduleAttemptFailure", true)
	r.Preempted(cycle.Preempted{Status: cycle.FoundVictims, Searched: true, Victims: 3, Violations: 2})
	r.Preempted(cycle.Preempted{Status: cycle.NoHelp, Searched: true})
	r.Preempted(cycle.Preempted{Group: true, Status: cycle.FoundVictims, Searched: true, Took: 3 * time.Millisecond, Victims: 5, Whole: 1, Violations: 4})
	r.Preempted(cycle.Preempted{Group: true, Status: cycle.NoHelp})
	r.RemovedVictims(false, true, time.Millisecond)
	r.RemovedVictims(true, false, time.Millisecond)
	r.GeneratedPlacements("default-scheduler", 3)
	r.EvaluatedPlacements("default-scheduler", false, 2, time.Millisecond)
	r.EvaluatedPlacements("default-scheduler", true, 1, time.Millisecond)
	r.Permitted("allowed", time.Second)
	r.AwaitedDevice("default-scheduler", "gpu.example.com", "success", true, 3*time.Second)
	r.AwaitedDevice("default-scheduler", "gpu.example.com", "success", false, 3*time.Second)
	r.MadeClaim(true)
	r.MadeClaim(false)
	r.VolumesFailed("bind")
	r.Handled(queue.Node, queue.Add, time.Microsecond)
	r.Hinted("NodeResourcesFit", "NodeAdd", true, time.Microsecond)
	r.Binding(2)
	r.BindRefused("Conflict")
	r.BindRefused("")
	r.Watch(func() cycle.Sizes {
		is := cycle.Sizes{Active: 1, Backoff: 2, Unschedulable: 3, Gated: 4, Nodes: 5, Pods: 6, Assumed: 7}
		is.Entities.Pods[queue.Active], is.Entities.Groups[queue.Gated] = 8, 9
		return is
	})
	r.Reloaded(false)
	got := scrape(t, r)
	for _, want := range []string{
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1`,
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"} 1`,
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="error"} 0`,
		`scheduler_scheduling_attempt_duration_seconds_bucket{profile="default-scheduler",result="scheduled",le="0.004"} 1`,
		`scheduler_scheduling_algorithm_duration_seconds_count 1`,
		`scheduler_podgroup_schedule_attempts_total{profile="default-scheduler",result="waiting_on_preemption"} 1`,
		`scheduler_podgroup_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="waiting_on_preemption"} 1`,
		`scheduler_podgroup_scheduling_algorithm_duration_seconds_count 1`,
		`scheduler_framework_extension_point_duration_seconds_count{extension_point="Permit",profile="default-scheduler",status="Success"} 1`,
		`scheduler_framework_extension_point_duration_seconds_count{extension_point="PreBind",profile="default-scheduler",status="Error"} 1`,
		`scheduler_plugin_execution_duration_seconds_count{extension_point="PreBind",plugin="VolumeBinding",status="Success"} 1`,
		`scheduler_queue_incoming_pods_total{event="UnscheduledPodAdd",queue="active"} 1`,
		`scheduler_queue_incoming_pods_total{event="ScheduleAttemptFailure",queue="unschedulable"} 1`,
		`scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"} 1`,
		`scheduler_pod_scheduling_sli_duration_seconds_count{attempts="15+"} 1`,
		`scheduler_pod_scheduling_attempts_bucket{le="1"} 1`,
		`scheduler_pod_scheduled_after_flush_total 1`,
		`scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"} 1`,
		`scheduler_preemption_attempts_total 2`,
		`scheduler_preemption_victims_count 1`,
		`scheduler_preemption_goroutines_execution_total{result="success"} 1`,
		`scheduler_workload_preemption_attempts_total{result="Success"} 1`,
		`scheduler_workload_preemption_attempts_total{result="Unschedulable"} 1`,
		`scheduler_workload_preemption_victims_sum 5`,
		`scheduler_preemption_workload_disruptions_sum{preemptor="podgroup"} 1`,
		`scheduler_preemption_evaluation_duration_seconds_count{preemptor="pod",result="Success"} 1`,
		`scheduler_preemption_evaluation_duration_seconds_count{preemptor="pod",result="Unschedulable"} 1`,
		`scheduler_preemption_evaluation_duration_seconds_bucket{preemptor="podgroup",result="Success",le="0.004"} 1`,
		`scheduler_preemption_execution_duration_seconds_count{preemptor="pod",result="success"} 1`,
		`scheduler_preemption_execution_duration_seconds_count{preemptor="podgroup",result="error"} 1`,
		`scheduler_preemption_pdb_violations_total{preemptor="pod"} 2`,
		`scheduler_preemption_pdb_violations_total{preemptor="podgroup"} 4`,
		`scheduler_generated_placements_total{profile="default-scheduler"} 3`,
		`scheduler_placement_evaluations_total{profile="default-scheduler",result="infeasible"} 2`,
		`scheduler_placement_evaluation_duration_seconds_count{profile="default-scheduler",result="infeasible"} 2`,
		`scheduler_placement_evaluations_total{profile="default-scheduler",result="feasible"} 1`,
		`scheduler_queue_incoming_pods_total{event="UnscheduledPodAdd",queue="unschedulable"} 1`,
		`scheduler_queue_incoming_entities_total{event="UnscheduledPodAdd",queue="active",type="pod"} 1`,
		`scheduler_queue_incoming_entities_total{event="UnscheduledPodAdd",queue="unschedulable",type="podgroup"} 1`,
		`scheduler_queue_incoming_entities_total{event="ScheduleAttemptFailure",queue="backoff",type="podgroup"} 1`,
		`scheduler_queued_entities{queue="active",type="pod"} 8`,
		`scheduler_queued_entities{queue="active",type="podgroup"} 0`,
		`scheduler_queued_entities{queue="gated",type="podgroup"} 9`,
		`scheduler_permit_wait_duration_seconds_count{result="Success"} 1`,
		`scheduler_dra_bindingconditions_allocations_total{driver="gpu.example.com",profile="default-scheduler",status="success"} 1`,
		`scheduler_dra_bindingconditions_wait_duration_seconds_count{driver="gpu.example.com",profile="default-scheduler",status="success"} 2`,
		`scheduler_dra_bindingconditions_wait_duration_seconds_bucket{driver="gpu.example.com",profile="default-scheduler",status="success",le="3.2"} 2`,
		`dynamic_resource_allocation_resourceclaim_creates_total{admin_access="false",owner_api_group="",owner_api_kind="Pod",status="success"} 1`,
		`dynamic_resource_allocation_resourceclaim_creates_total{admin_access="false",owner_api_group="",owner_api_kind="Pod",status="failure"} 1`,
		`scheduler_volume_scheduling_stage_error_total{operation="bind"} 1`,
		`scheduler_event_handling_duration_seconds_count{event="NodeAdd"} 1`,
		`scheduler_queueing_hint_execution_duration_seconds_count{event="NodeAdd",hint="Queue",plugin="NodeResourcesFit"} 1`,
		`scheduler_goroutines{operation="binding"} 2`,
		`berth_scheduler_bindings_refused_total{reason="Conflict"} 1`,
		`berth_scheduler_bindings_refused_total{reason="Unknown"} 1`,
		`scheduler_pending_pods{queue="active"} 1`,
		`scheduler_pending_pods{queue="backoff"} 2`,
		`scheduler_pending_pods{queue="unschedulable"} 3`,
		`scheduler_pending_pods{queue="gated"} 4`,
		`scheduler_cache_size{type="nodes"} 5`,
		`scheduler_cache_size{type="pods"} 6`,
		`scheduler_cache_size{type="assumed_pods"} 7`,
		`berth_scheduler_config_reloads_total{result="refused"} 1`,
		`berth_scheduler_config_last_reload_successful 0`,
		"# HELP scheduler_pending_pods [STABLE] Number of pending pods, by the queue type.",
		"# TYPE scheduler_unschedulable_pods gauge",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line %s", want)
		}
	}
	for _, other := range []string{
		`scheduler_queue_incoming_entities_total{event="ScheduleAttemptFailure",queue="unschedulable",type="pod"}`,
		`scheduler_queue_incoming_entities_total{event="NodeAdd",`,
		`scheduler_preemption_evaluation_duration_seconds_count{preemptor="podgroup",result="Unschedulable"}`,
	} {
		if strings.Contains(got, other) {
			t.Errorf("there is a line %s", other)
		}
	}
	r.Reloaded(true)
	if got := scrape(t, r); !strings.Contains(got, `config_reloads_total{result="applied"} 1`) || !strings.Contains(got, "last_reload_successful 1") {
		t.Error("a change that was applied is not told")
	}
}

// TestMetricsAreWellMade verifies that Prometheus' linter accepts Berth's own metrics; it does not
// check upstream's.
func TestMetricsAreWellMade(t *testing.T) {
	r := New()
	r.Reloaded(true)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "berth_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
