// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Gentle preemption is an option of a profile: a pod first uses the room of pods that are already
// terminating. Victims are chosen only after the pod has been unschedulable for PreemptionDelay.

// reuseEvictions finds room without new victims for a pod of a profile with gentle preemption. The
// room is on nodes with terminating victims of earlier preemptions. During its delay, the pod also
// waits for new nodes. done is false if victims may be chosen for the pod.
func (pr *preemptions) reuseEvictions(a *podAttempt) (r PostFilterResult, done bool) {
	if !a.profile.GentlePreemption || a.Waiting.Class.Spec.NeverPreempts() {
		return PostFilterResult{}, false
	}
	n, err := pr.roomOfLeavers(a)
	switch aside := (*plugins.PendingQuery)(nil); {
	case errors.As(err, &aside):
		return PostFilterResult{Err: aside}, true
	case errors.Is(err, decide.ErrTooLong):
		return PostFilterResult{Err: err}, true
	case n != nil:
		message := fmt.Sprintf("preemption: the pod waits for node %s, which pods preempted earlier are leaving.", n.Name)
		return PostFilterResult{Nominate: &n.Name, Message: message, Final: true}, true
	case !pr.mustDelay(a.item):
		return PostFilterResult{}, false
	}

	r.Message = fmt.Sprintf("preemption: not before the pod has been unschedulable for %s.", a.profile.PreemptionDelay)
	if n := pr.cluster.Node(a.Waiting.Nominated); n == nil || !slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return p.Preempted }) {
		r.Nominate = new(string)
	}
	return r, true
}

// roomOfLeavers finds a node that will have room for the pod, and for all pods nominated to the
// node, once all preempted pods have terminated. It leaves the cluster unchanged. If there are
// terminating victims, it costs as much as a decision.
func (pr *preemptions) roomOfLeavers(a *podAttempt) (*cluster.Node, error) {
	leavers := pr.onTheirWay()
	if len(leavers) == 0 {
		return nil, nil
	}
	gone := gang.Without(pr.cluster)
	defer gone.RestoreAfter(0)
	for _, p := range leavers {
		gone.Remove(p)
	}
	// The pod must not take the room that lower-priority nominated pods wait for.
	defer gang.ProtectNominations(pr.cluster, a.Waiting.Class.Priority)()
	found := a.profile.Decide(a.Waiting)
	return found.Node, found.Err
}

// onTheirWay lists the preempted pods still terminating on known nodes, sorted.
func (pr *preemptions) onTheirWay() (list []*cluster.Pod) {
	for _, uid := range slices.Sorted(maps.Keys(pr.leavers)) {
		if p := pr.cluster.Pod(uid); p != nil && p.Node != nil && p.Preempted {
			list = append(list, p)
		}
	}
	return list
}

// delayedUntil returns the time before which no victims are chosen for a queued pod, so that an
// autoscaler has time to add nodes. It returns the zero time for critical pods, and for pods
// confined to one node, such as a DaemonSet's, which an autoscaler cannot help.
func (pr *preemptions) delayedUntil(item *queue.Item) time.Time {
	most := pr.delays[item.Pod.Spec.SchedulerName]
	if class := item.Class; most == 0 || class.Priority >= rules.SystemCritical || class.Target() != "" || class.Spec.NeverPreempts() {
		return time.Time{}
	}
	if item.Unfit.IsZero() {
		return pr.now.Add(most)
	}
	return item.Unfit.Add(most)
}

// mustDelay reports whether victims may not be chosen for the pod yet.
func (pr *preemptions) mustDelay(item *queue.Item) bool { return pr.now.Before(pr.delayedUntil(item)) }

// noteUnschedulable records that a queued pod was found unschedulable.
func (pr *preemptions) noteUnschedulable(item *queue.Item) {
	if item.Unfit.IsZero() && pr.queue.Get(item.Pod.UID) == item {
		item.Unfit = pr.now
		pr.scheduleRetry(item)
	}
}

// scheduleRetry schedules a retry of a pod for the time when it may preempt. No retry is scheduled
// if the pod was last tried after that time. Duplicate alarms for a pod are harmless.
func (pr *preemptions) scheduleRetry(item *queue.Item) {
	d := delay{pr.delayedUntil(item), item.Pod.UID}
	if d.until.After(item.Entered()) {
		at, _ := slices.BinarySearchFunc(pr.alarms, d, func(a, b delay) int {
			return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.pod, b.pod))
		})
		pr.alarms = slices.Insert(pr.alarms, at, d)
	}
}

// setAlarms recomputes the delays of all pods. It is called after a change of profiles, which may
// change the delays.
func (pr *preemptions) setAlarms() {
	pr.alarms = nil
	if len(pr.delays) == 0 {
		return
	}
	for _, item := range pr.queue.SortedIf(func(item *queue.Item) bool { return !item.Unfit.IsZero() }) {
		pr.scheduleRetry(item)
	}
}

// wakeDelayed wakes the pods that may preempt now.
func (pr *preemptions) wakeDelayed() {
	for len(pr.alarms) > 0 && !pr.alarms[0].until.After(pr.now) {
		pr.queue.Wake(pr.alarms[0].pod, "PreemptionDelayOver", pr.now)
		pr.alarms = pr.alarms[1:]
	}
}
