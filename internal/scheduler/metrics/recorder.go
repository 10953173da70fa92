// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	dto "github.com/prometheus/client_model/go"
	fwk "k8s.io/kube-scheduler/framework"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Recorder keeps the metrics of one scheduler. It implements cycle.Observer, and the deciding
// goroutine calls most of its methods, which therefore only count. Any goroutine may call them.
type Recorder struct {
	*recorded
	registry metrics.KubeRegistry
	sizes    atomic.Pointer[func() cycle.Sizes]     // set by Watch; if nil, the gauges of sizes are not updated
	look     atomic.Pointer[func(func(cycle.View))] // see WatchDevices
	looking  atomic.Bool                            // set while a look is in progress
	labels   sync.Map                               // label by handled, cached because it is slow to build
}

// handled is a kind of change of an object, for the cache of labels.
type handled struct {
	queue.Resource
	queue.Action
}

var _ cycle.Observer = (*Recorder)(nil)

// New returns a recorder without observations.
func New() *Recorder {
	r := &Recorder{recorded: newRecorded(), registry: metrics.NewKubeRegistry()}
	r.registry.MustRegister(r.all()...)
	// Series begin at 0 so that rates include the first attempts: a series that begins at 1 shows
	// no increase.
	for _, result := range []cycle.Result{cycle.Scheduled, cycle.Unschedulable, cycle.Errored} {
		r.attempts.WithLabelValues(string(result), "default-scheduler").Add(0)
	}
	return r
}

// Watch makes every scrape call sizes, instead of the scheduler setting gauges at each change.
func (r *Recorder) Watch(sizes func() cycle.Sizes) { r.sizes.Store(&sizes) }

// Gather implements prometheus.Gatherer. Gauges are set here, as of the scrape.
func (r *Recorder) Gather() ([]*dto.MetricFamily, error) {
	if sizes := r.sizes.Load(); sizes != nil {
		now := (*sizes)()
		for queue, n := range map[string]int{"active": now.Active, "backoff": now.Backoff,
			"unschedulable": now.Unschedulable, "gated": now.Gated} {
			r.pending.WithLabelValues(queue).Set(float64(n))
		}
		for place := queue.Active; place <= queue.Gated; place++ {
			r.entities.WithLabelValues(place.String(), entity(false)).Set(float64(now.Entities.Pods[place]))
			r.entities.WithLabelValues(place.String(), entity(true)).Set(float64(now.Entities.Groups[place]))
		}
		for kind, n := range map[string]int{"nodes": now.Nodes, "pods": now.Pods, "assumed_pods": now.Assumed} {
			r.cacheSize.WithLabelValues(kind).Set(float64(n))
		}
	}
	r.lookAtDevices()
	return r.registry.Gather()
}

// Attempted counts an attempt.
func (r *Recorder) Attempted(profile string, result cycle.Result, took time.Duration) {
	r.attempts.WithLabelValues(string(result), profile).Inc()
	r.attemptDuration.WithLabelValues(string(result), profile).Observe(took.Seconds())
}

// AttemptedGroup counts an attempt at a pod group.
func (r *Recorder) AttemptedGroup(profile string, result cycle.Result, took time.Duration) {
	r.groupAttempts.WithLabelValues(string(result), profile).Inc()
	r.groupAttemptDuration.WithLabelValues(string(result), profile).Observe(took.Seconds())
}

// DecidedGroup measures the decision about a pod group.
func (r *Recorder) DecidedGroup(took time.Duration) {
	r.groupAlgorithmDuration.Observe(took.Seconds())
}

// Decided measures a decision.
func (r *Recorder) Decided(took time.Duration) { r.algorithmDuration.Observe(took.Seconds()) }

// Ran measures an extension point.
func (r *Recorder) Ran(profile string, point plugins.Point, ok bool, took time.Duration) {
	r.extensionPoints.WithLabelValues(title(point), status(point, ok), profile).Observe(took.Seconds())
}

// RanPlugin measures a plugin.
func (r *Recorder) RanPlugin(plugin string, point plugins.Point, ok bool, took time.Duration) {
	r.plugins.WithLabelValues(plugin, title(point), status(point, ok)).Observe(took.Seconds())
}

// title returns the extension point in the spelling of upstream's metrics.
func title(point plugins.Point) string {
	name := point.String()
	return strings.ToUpper(name[:1]) + name[1:]
}

// status returns upstream's status label for the success or failure of an extension point.
func status(point plugins.Point, ok bool) string {
	switch {
	case ok:
		return fwk.Success.String()
	case point == plugins.PreEnqueue:
		return fwk.UnschedulableAndUnresolvable.String()
	case point == plugins.PostFilter, point == plugins.Permit, point == plugins.Reserve:
		return fwk.Unschedulable.String()
	}
	return fwk.Error.String()
}

// Queued counts a pod entering a queue.
func (r *Recorder) Queued(place queue.Place, event string) {
	r.incoming.WithLabelValues(queueOf(place), event).Inc()
}

// queueOf returns upstream's queue label for a place: upstream counts gated pods as unschedulable.
func queueOf(place queue.Place) string {
	if place == queue.Gated {
		place = queue.Waiting
	}
	return place.String()
}

// choose returns the first label if the condition is met, and otherwise the second.
func choose(met bool, label, otherwise string) string {
	if met {
		return label
	}
	return otherwise
}

// entity returns upstream's label of pod groups, and of pods without a group.
func entity(group bool) string {
	return choose(group, string(fwk.PodGroupKeyType), string(fwk.PodKeyType))
}

// EntityQueued counts a pod group, or a pod without a group, entering a queue. Like upstream, it
// skips a rejected pod returning to the queue, and an entity sent to back-off by an event.
func (r *Recorder) EntityQueued(place queue.Place, event string, group bool) {
	returns := event == queue.AttemptFailed
	if returns && !group && place != queue.Gated || place == queue.Backoff && !returns {
		return
	}
	r.entering.WithLabelValues(queueOf(place), event, entity(group)).Inc()
}

// manyAttempts is upstream's limit: pods with at least this number of attempts share a label.
const manyAttempts = 15

// Bound counts a bound pod.
func (r *Recorder) Bound(attempts int, sinceFirst time.Duration, afterFlush bool) {
	label := strconv.Itoa(attempts)
	if attempts >= manyAttempts {
		label = strconv.Itoa(manyAttempts) + "+"
	}
	r.sliDuration.WithLabelValues(label).Observe(sinceFirst.Seconds())
	r.attemptsPerPod.Observe(float64(attempts))
	if afterFlush {
		r.scheduledAfterFlush.Inc()
	}
}

// Rejected adds delta to the number of waiting pods that the plugin has rejected.
func (r *Recorder) Rejected(plugin, profile string, delta int) {
	r.unschedulable.WithLabelValues(plugin, profile).Add(float64(delta))
}

// Preempted counts a preemption.
func (r *Recorder) Preempted(p cycle.Preempted) {
	victims, by := r.preemptionVictims, entity(p.Group)
	if p.Group {
		victims = r.groupVictims
		r.groupPreemptions.WithLabelValues(string(p.Status)).Inc()
	} else {
		r.preemptionAttempts.Inc()
	}
	if p.Searched {
		r.searchDuration.WithLabelValues(by, string(p.Status)).Observe(p.Took.Seconds())
	}

	if p.Victims > 0 {
		victims.Observe(float64(p.Victims))
	}
	if p.Whole > 0 {
		r.wholeVictims.WithLabelValues(by).Observe(float64(p.Whole))
	}
	if p.Violations > 0 {
		r.violations.WithLabelValues(by).Add(float64(p.Violations))
	}
}

// GeneratedPlacements counts the possible placements of a pod group.
func (r *Recorder) GeneratedPlacements(profile string, count int) {
	r.placements.WithLabelValues(profile).Add(float64(count))
}

// EvaluatedPlacements counts evaluated placements, and measures the time taken.
func (r *Recorder) EvaluatedPlacements(profile string, feasible bool, count int, took time.Duration) {
	result := choose(feasible, "feasible", "infeasible")
	r.evaluations.WithLabelValues(result, profile).Add(float64(count))
	for range count {
		r.evaluationDuration.WithLabelValues(result, profile).Observe(took.Seconds())
	}
}

// RemovedVictims measures the removal of victims.
func (r *Recorder) RemovedVictims(group, ok bool, took time.Duration) {
	result := choose(ok, "success", "error")
	r.removals.WithLabelValues(result).Inc()
	r.removalDuration.WithLabelValues(result).Observe(took.Seconds())
	r.executionDuration.WithLabelValues(entity(group), result).Observe(took.Seconds())
}

// Permitted measures a wait at Permit.
func (r *Recorder) Permitted(result string, took time.Duration) {
	code := choose(result == "allowed", fwk.Success.String(), fwk.Unschedulable.String())
	r.permitWait.WithLabelValues(code).Observe(took.Seconds())
}

// AwaitedDevice measures a wait for devices, and counts it if the devices have binding conditions.
func (r *Recorder) AwaitedDevice(profile, driver, how string, conditions bool, took time.Duration) {
	r.deviceWaiting.WithLabelValues(profile, driver, how).Observe(took.Seconds())
	if conditions {
		r.deviceWaits.WithLabelValues(profile, driver, how).Inc()
	}
}

// MadeClaim counts claims for extended resources.
func (r *Recorder) MadeClaim(ok bool) {
	r.claims.WithLabelValues(choose(ok, "success", "failure"), "false", "", "Pod").Inc() // for extended resources
}

// VolumesFailed counts errors with the volumes of pods.
func (r *Recorder) VolumesFailed(stage string) { r.volumeErrors.WithLabelValues(stage).Inc() }

// Handled measures the handling of a change of an object.
func (r *Recorder) Handled(resource queue.Resource, action queue.Action, took time.Duration) {
	event := handled{resource, action}
	known, ok := r.labels.Load(event)
	if !ok {
		known = fwk.ClusterEvent{Resource: fwk.EventResource(resource), ActionType: fwk.ActionType(action)}.Label()
		r.labels.Store(event, known)
	}
	r.events.WithLabelValues(known.(string)).Observe(took.Seconds())
}

// Hinted measures a queueing hint.
func (r *Recorder) Hinted(plugin, event string, wake bool, took time.Duration) {
	r.hints.WithLabelValues(plugin, event, choose(wake, "Queue", "QueueSkip")).Observe(took.Seconds())
}

// BindRefused counts a refused binding.
func (r *Recorder) BindRefused(reason string) {
	r.refusedBindings.WithLabelValues(cmp.Or(reason, "Unknown")).Inc()
}

// PreHinted counts calls of a plugin's PreQueueingHintFn.
func (r *Recorder) PreHinted(plugin string, narrowed bool) {
	r.preHints.WithLabelValues(plugin, choose(narrowed, "narrowed", "all_pods")).Inc()
}

// Panics counts decisions, and calls of plugins outside of them, that panicked.
func (r *Recorder) Panics() { r.panics.Inc() }

// LostRecord counts records lost by the journal.
func (r *Recorder) LostRecord() { r.lostRecords.Inc() }

// Binding counts bindings in flight.
func (r *Recorder) Binding(delta int) { r.goroutines.WithLabelValues("binding").Add(float64(delta)) }

// Reloaded records whether a change of the configuration was applied.
func (r *Recorder) Reloaded(ok bool) {
	if !ok {
		r.reloads.WithLabelValues("refused").Inc()
		r.reloadSucceeded.Set(0)
		return
	}
	r.reloads.WithLabelValues("applied").Inc()
	r.Configured()
}

// Configured records that the current configuration is in use.
func (r *Recorder) Configured() {
	r.reloadSucceeded.Set(1)
	r.reloadTime.Set(float64(time.Now().UnixMilli()) / 1000)
}

// longestLook bounds a scrape's wait for the scheduler to be between two decisions. After that, the
// scrape shows the previous result.
const longestLook = 200 * time.Millisecond

// WatchDevices makes every scrape measure the free devices of profiles with the plugin
// Fragmentation. look must call its argument with the scheduler's state, later, on the deciding
// goroutine between two decisions. Measuring delays decisions, so it is done only for a scrape.
func (r *Recorder) WatchDevices(look func(func(cycle.View))) { r.look.Store(&look) }

// lookAtDevices measures the devices and waits for the result. While a measurement is pending,
// further scrapes do not start another.
func (r *Recorder) lookAtDevices() {
	look := r.look.Load()
	if look == nil || !r.looking.CompareAndSwap(false, true) {
		return
	}

	done := make(chan struct{})
	(*look)(func(v cycle.View) {
		defer close(done)
		defer r.looking.Store(false)
		r.measureDevices(v)
	})
	select {
	case <-done:
	case <-time.After(longestLook):
	}
}

// measureDevices sets the gauges, in whole devices; amounts are in thousandths.
func (r *Recorder) measureDevices(v cycle.View) {
	r.devices.Reset() // pools may have been removed
	for name, profile := range v.Profiles {
		valuer := profile.DeviceValuer()
		if valuer == nil {
			continue
		}
		resource, _ := valuer.Resource()
		for pool, room := range valuer.RoomByPool(v.Cluster) {
			for state, amount := range map[string]int64{"size": room.Size, "free": room.Free, "usable": room.Usable, "left": room.Left} {
				r.devices.WithLabelValues(name, string(resource), pool, state).Set(float64(amount) / 1000)
			}
		}
	}
}
