// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/kube/instrument"
)

// recorded holds the metrics. docs/reference/metrics.md lists the metrics of kube-scheduler that
// have no equivalent here. The fields are grouped like the functions below, which define names,
// help texts and buckets.
type recorded struct {
	attempts          *metrics.CounterVec   // schedule_attempts_total
	attemptDuration   *metrics.HistogramVec // scheduling_attempt_duration_seconds
	algorithmDuration *metrics.Histogram    // scheduling_algorithm_duration_seconds
	extensionPoints   *metrics.HistogramVec // framework_extension_point_duration_seconds
	plugins           *metrics.HistogramVec // plugin_execution_duration_seconds; sampled
	events            *metrics.HistogramVec // event_handling_duration_seconds
	hints             *metrics.HistogramVec // queueing_hint_execution_duration_seconds
	preHints          *metrics.CounterVec   // pre_queueing_hint_evaluations_total

	groupAttempts          *metrics.CounterVec   // podgroup_schedule_attempts_total
	groupAttemptDuration   *metrics.HistogramVec // podgroup_scheduling_attempt_duration_seconds
	groupAlgorithmDuration *metrics.Histogram    // podgroup_scheduling_algorithm_duration_seconds
	placements             *metrics.CounterVec   // generated_placements_total
	evaluations            *metrics.CounterVec   // placement_evaluations_total
	evaluationDuration     *metrics.HistogramVec // placement_evaluation_duration_seconds

	pending       *metrics.GaugeVec   // pending_pods; set at each scrape
	entities      *metrics.GaugeVec   // queued_entities; set at each scrape
	incoming      *metrics.CounterVec // queue_incoming_pods_total
	entering      *metrics.CounterVec // queue_incoming_entities_total
	unschedulable *metrics.GaugeVec   // unschedulable_pods; incremented and decremented
	cacheSize     *metrics.GaugeVec   // cache_size; set at each scrape
	goroutines    *metrics.GaugeVec   // goroutines; only for bindings
	panics        *metrics.Counter    // berth_scheduler_panics_total
	lostRecords   *metrics.Counter    // berth_journal_lost_records_total

	sliDuration         *metrics.HistogramVec // pod_scheduling_sli_duration_seconds
	attemptsPerPod      *metrics.Histogram    // pod_scheduling_attempts
	scheduledAfterFlush *metrics.Counter      // pod_scheduled_after_flush_total
	permitWait          *metrics.HistogramVec // permit_wait_duration_seconds

	claims        *metrics.CounterVec   // resourceclaim_creates_total
	deviceWaits   *metrics.CounterVec   // dra_bindingconditions_allocations_total
	deviceWaiting *metrics.HistogramVec // dra_bindingconditions_wait_duration_seconds
	volumeErrors  *metrics.CounterVec   // volume_scheduling_stage_error_total

	preemptionAttempts *metrics.Counter      // preemption_attempts_total
	preemptionVictims  *metrics.Histogram    // preemption_victims
	removalDuration    *metrics.HistogramVec // preemption_goroutines_duration_seconds
	removals           *metrics.CounterVec   // preemption_goroutines_execution_total
	groupPreemptions   *metrics.CounterVec   // workload_preemption_attempts_total
	groupVictims       *metrics.Histogram    // workload_preemption_victims
	wholeVictims       *metrics.HistogramVec // preemption_workload_disruptions
	searchDuration     *metrics.HistogramVec // preemption_evaluation_duration_seconds
	executionDuration  *metrics.HistogramVec // preemption_execution_duration_seconds
	violations         *metrics.CounterVec   // preemption_pdb_violations_total

	reloads         *metrics.CounterVec // berth_scheduler_config_reloads_total
	reloadSucceeded *metrics.Gauge      // berth_scheduler_config_last_reload_successful
	reloadTime      *metrics.Gauge      // berth_scheduler_config_last_reload_success_timestamp_seconds
	refusedBindings *metrics.CounterVec // berth_scheduler_bindings_refused_total
	devices         *metrics.GaugeVec   // berth_scheduler_fragmentation_devices; set at a scrape, see WatchDevices
}

// subsystem is upstream's; Berth's own metrics do not use it, and their names begin with berth_.
const subsystem = "scheduler"

// millis holds buckets for durations from a millisecond to many seconds.
var millis = metrics.ExponentialBuckets(0.001, 2, 15)

// counter and the functions after it create a metric of upstream's subsystem.
func counter(name, help string, level metrics.StabilityLevel, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: level}, labels)
}

func gauge(name, help string, level metrics.StabilityLevel, labels ...string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: level}, labels)
}

func histogram(name, help string, buckets []float64, level metrics.StabilityLevel, labels ...string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help,
		Buckets: buckets, StabilityLevel: level}, labels)
}

func plainHistogram(name, help string, buckets []float64, level metrics.StabilityLevel) *metrics.Histogram {
	return metrics.NewHistogram(&metrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets,
		StabilityLevel: level})
}

func plainCounter(name, help string, level metrics.StabilityLevel) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: level})
}

// newRecorded creates all metrics, without values.
func newRecorded() *recorded {
	r := &recorded{}
	r.ofAttempts()
	r.ofGroups()
	r.ofQueue()
	r.ofPods()
	r.ofObjects()
	r.ofPreemption()
	r.own()
	return r
}

// ofAttempts creates the metrics of attempts to schedule a pod, and of plugins in them.
func (r *recorded) ofAttempts() {
	r.attempts = counter("schedule_attempts_total",
		"Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, "+
			"while 'error' means an internal scheduler problem.",
		metrics.STABLE, "result", "profile")

	r.attemptDuration = histogram("scheduling_attempt_duration_seconds",
		"Scheduling attempt latency in seconds (scheduling algorithm + binding)", millis, metrics.STABLE, "result", "profile")
	r.algorithmDuration = plainHistogram("scheduling_algorithm_duration_seconds",
		"Scheduling algorithm latency in seconds", millis, metrics.BETA)
	r.extensionPoints = histogram("framework_extension_point_duration_seconds",
		"Latency for running all plugins of a specific extension point.", metrics.ExponentialBuckets(0.0001, 2, 12),
		metrics.STABLE, "extension_point", "status", "profile")
	r.plugins = histogram("plugin_execution_duration_seconds",
		"Duration for running a plugin at a specific extension point.", metrics.ExponentialBuckets(0.00001, 1.5, 20),
		metrics.BETA, "plugin", "extension_point", "status")

	r.events = histogram("event_handling_duration_seconds",
		"Event handling latency in seconds.", metrics.ExponentialBuckets(0.0001, 2, 12), metrics.ALPHA, "event")
	r.hints = histogram("queueing_hint_execution_duration_seconds",
		"Duration for running a queueing hint function of a plugin.", metrics.ExponentialBuckets(0.00001, 1.5, 20),
		metrics.ALPHA, "plugin", "event", "hint")
	r.preHints = counter("pre_queueing_hint_evaluations_total",
		"Number of PreQueueingHint evaluations, labeled by plugin and result (all_pods or narrowed).", metrics.ALPHA, "plugin", "result")
}

// ofGroups creates the metrics of attempts to schedule a pod group.
func (r *recorded) ofGroups() {
	r.groupAttempts = counter("podgroup_schedule_attempts_total",
		"Number of attempts to schedule pod group, by the result. 'unschedulable' means a pod group could not be "+
			"scheduled, while 'error' means an internal scheduler problem.",
		metrics.ALPHA, "result", "profile")
	r.groupAttemptDuration = histogram("podgroup_scheduling_attempt_duration_seconds",
		"Pod group scheduling attempt latency in seconds (scheduling algorithm + binding)", millis, metrics.ALPHA, "result", "profile")
	r.groupAlgorithmDuration = plainHistogram("podgroup_scheduling_algorithm_duration_seconds",
		"Pod group scheduling algorithm latency in seconds", millis, metrics.ALPHA)

	r.placements = counter("generated_placements_total",
		"Number of candidate placements generated when scheduling pod groups.", metrics.ALPHA, "profile")
	r.evaluations = counter("placement_evaluations_total",
		"Number of candidate placements evaluated when scheduling pod groups, by result. 'feasible' means the pod group fit into the "+
			"placement, while 'infeasible' means it did not.",
		metrics.ALPHA, "result", "profile")
	r.evaluationDuration = histogram("placement_evaluation_duration_seconds",
		"Latency in seconds of evaluating a single candidate placement when scheduling pod groups, by result. 'feasible' means the pod "+
			"group fit into the placement, while 'infeasible' means it did not.",
		millis, metrics.ALPHA, "result", "profile")
}

// ofQueue creates the metrics of the queue and of the scheduler's state.
func (r *recorded) ofQueue() {
	r.pending = gauge("pending_pods",
		"Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number "+
			"of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler "+
			"attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never "+
			"attempted to schedule because they are gated.",
		metrics.STABLE, "queue")
	r.entities = gauge("queued_entities",
		"Number of queued scheduling entities ('pod' or 'podgroup'; 'pod' stands for individual pods that are not members of any "+
			"podgroup) by the queue type. 'active' means number of entities in activeQ; 'backoff' means number of entities in "+
			"backoffQ; 'unschedulable' means number of entities in unschedulableEntities that the scheduler attempted to schedule "+
			"and failed; 'gated' is the number of unschedulable entities that the scheduler never attempted to schedule because "+
			"they are gated.",
		metrics.ALPHA, "queue", "type")

	r.entering = counter("queue_incoming_entities_total",
		"Number of scheduling entities added to scheduling queues by event, queue type, and entity type. Entity types are either 'pod' "+
			"(for individual pods that are not members of any podgroup) or 'podgroup'.",
		metrics.ALPHA, "queue", "event", "type")
	r.incoming = counter("queue_incoming_pods_total",
		"Number of pods added to scheduling queues by event and queue type.", metrics.STABLE, "queue", "event")

	r.unschedulable = gauge("unschedulable_pods",
		"The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins "+
			"that caused it to not schedule and so this metric have meaning only when broken down by plugin.",
		metrics.BETA, "plugin", "profile")
	r.cacheSize = gauge("cache_size",
		"Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", metrics.ALPHA, "type")
	r.goroutines = gauge("goroutines",
		"Number of running goroutines split by the work they do such as binding.", metrics.BETA, "operation")
}

// ofPods creates the metrics of a pod's scheduling over all attempts.
func (r *recorded) ofPods() {
	r.sliDuration = histogram("pod_scheduling_sli_duration_seconds",
		"E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve "+
			"multiple scheduling attempts.",
		metrics.ExponentialBuckets(0.01, 2, 20), metrics.BETA, "attempts")
	r.attemptsPerPod = plainHistogram("pod_scheduling_attempts",
		"Number of attempts to successfully schedule a pod.", metrics.ExponentialBuckets(1, 2, 5), metrics.STABLE)
	r.scheduledAfterFlush = plainCounter("pod_scheduled_after_flush_total",
		"Number of pods that were successfully scheduled after being flushed from unschedulablePods due to timeout. "+
			"This metric helps detect potential queueing hint misconfigurations or event handling issues.",
		metrics.ALPHA)
	r.permitWait = histogram("permit_wait_duration_seconds",
		"Duration of waiting on permit.", millis, metrics.BETA, "result")
}

// ofObjects creates the metrics of volumes and device claims.
func (r *recorded) ofObjects() {
	r.volumeErrors = counter("volume_scheduling_stage_error_total", "Volume scheduling stage error count", metrics.ALPHA, "operation")
	r.claims = instrument.CounterVec("dynamic_resource_allocation_resourceclaim_creates_total",
		"Number of ResourceClaims creation requests, categorized by creation status, admin access, and owning "+
			"API group and kind (either Pod or scheduling.k8s.io/PodGroup)",
		"status", "admin_access", "owner_api_group", "owner_api_kind")
	r.deviceWaits = counter("dra_bindingconditions_allocations_total",
		"Number of allocations using devices with BindingConditions, counted per driver per scheduling attempt",
		metrics.ALPHA, "profile", "driver", "status")
	r.deviceWaiting = histogram("dra_bindingconditions_wait_duration_seconds",
		"Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.", metrics.ExponentialBuckets(0.1, 2, 14),
		metrics.ALPHA, "profile", "driver", "status")
}

// ofPreemption creates the metrics of preemption, for pods and for groups.
func (r *recorded) ofPreemption() {
	r.preemptionAttempts = plainCounter("preemption_attempts_total", "Total preemption attempts in the cluster till now", metrics.STABLE)
	r.preemptionVictims = plainHistogram("preemption_victims",
		"Number of selected preemption victims", metrics.ExponentialBuckets(1, 2, 7), metrics.STABLE)
	r.removalDuration = histogram("preemption_goroutines_duration_seconds",
		"Duration in seconds for running goroutines for the preemption.", metrics.ExponentialBuckets(0.01, 2, 20), metrics.ALPHA, "result")
	r.removals = counter("preemption_goroutines_execution_total", "Number of preemption goroutines executed.", metrics.ALPHA, "result")
	r.ofGroupPreemption()
}

// ofGroupPreemption creates the metrics that upstream added with pod groups; some also measure
// preemption by single pods.
func (r *recorded) ofGroupPreemption() {
	seconds := metrics.ExponentialBuckets(0.001, 2, 16)
	r.groupPreemptions = counter("workload_preemption_attempts_total",
		"Total preemption attempts initiated by workload (including pod groups) in the cluster till now.", metrics.ALPHA, "result")
	r.groupVictims = plainHistogram("workload_preemption_victims",
		"Number of pod preemption victims caused by workload preemption.", metrics.ExponentialBuckets(1, 2, 11), metrics.ALPHA)
	r.wholeVictims = histogram("preemption_workload_disruptions",
		"Number of workload preemption units being preempted. A single preemption unit can be all pods in a pod group (in case of "+
			"DisruptionMode=all), or a single pod (in case of DisruptionMode=single).",
		metrics.ExponentialBuckets(1, 2, 11), metrics.ALPHA, "preemptor")
	r.searchDuration = histogram("preemption_evaluation_duration_seconds",
		"Duration in seconds for identifying the target preemption victims.", seconds, metrics.ALPHA, "preemptor", "result")
	r.executionDuration = histogram("preemption_execution_duration_seconds",
		"Duration in seconds for preempting the target preemption victims. With async preemption enabled, preemption execution does not "+
			"block the scheduling of other pods.",
		seconds, metrics.ALPHA, "preemptor", "result")
	r.violations = counter("preemption_pdb_violations_total",
		"Total number of pod disruption budget violations caused by preemption.", metrics.ALPHA, "preemptor")
}

// own creates the metrics without an equivalent in kube-scheduler.
func (r *recorded) own() {
	r.reloads = instrument.CounterVec("berth_scheduler_config_reloads_total",
		"Changes of the configuration file, by outcome: applied or refused.", "result")

	r.reloadSucceeded = instrument.Gauge("berth_scheduler_config_last_reload_successful",
		"1 if the configuration file as it is now is in use, 0 if it was refused and an earlier one is.")

	r.reloadTime = instrument.Gauge("berth_scheduler_config_last_reload_success_timestamp_seconds",
		"Unix time at which the configuration in use was loaded.")

	r.refusedBindings = instrument.CounterVec("berth_scheduler_bindings_refused_total",
		"Bindings that were not taken, by the API server's reason: Conflict is a pod that had a node "+
			"already, NotFound a deleted one, Unknown no answer.", "reason")

	r.devices = instrument.GaugeVec("berth_scheduler_fragmentation_devices",
		"Devices by node pool, with the plugin Fragmentation: size is all, free what no pod has, usable what of it the "+
			"next pod can use, on average over the expected pods, left what is expected to be left over when none fits any more.",
		"profile", "resource", "pool", "state")

	r.panics = instrument.Counter("berth_scheduler_panics_total",
		"Decisions, and calls of out-of-tree plugins for them, that panicked. Each cost its pod "+
			"the attempt at most, and other pods nothing; the log has the stack, which belongs in a bug report.")
	r.lostRecords = instrument.Counter("berth_journal_lost_records_total",
		"Records that --journal has lost: the disk did not keep up, or the journal has ended. "+
			"The log names them, and the next file records the gap.")
}

// all lists the metrics in the order of the documentation.
func (r *recorded) all() []metrics.Registerable {
	return []metrics.Registerable{
		r.attempts, r.attemptDuration, r.algorithmDuration, r.extensionPoints, r.plugins, r.events, r.hints, r.preHints,
		r.groupAttempts, r.groupAttemptDuration, r.groupAlgorithmDuration, r.placements, r.evaluations, r.evaluationDuration,
		r.pending, r.entities, r.incoming, r.entering, r.unschedulable, r.cacheSize, r.goroutines,
		r.sliDuration, r.attemptsPerPod, r.scheduledAfterFlush, r.permitWait,
		r.claims, r.deviceWaits, r.deviceWaiting, r.volumeErrors,
		r.preemptionAttempts, r.preemptionVictims, r.removalDuration, r.removals,
		r.groupPreemptions, r.groupVictims, r.wholeVictims, r.searchDuration, r.executionDuration, r.violations,
		r.reloads, r.reloadSucceeded, r.reloadTime, r.refusedBindings, r.devices, r.panics, r.lostRecords,
	}
}
