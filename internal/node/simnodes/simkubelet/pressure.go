// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/pressure"
)

// This file evicts pods under pressure. Package pressure computes a verdict from the usage declared
// in pods' annotations; this file turns the verdict into node conditions and evictions.

// measureEvery is the kubelet's interval between measurements of a node under pressure.
const measureEvery = 10 * time.Second

// usesOf returns the usage of the pod's processes. It reports a malformed annotation and returns
// nil for it, as for a pod without the annotation.
func (f *Fleet) usesOf(p *pod) v1.ResourceList {
	uses, err := pressure.Uses(p.object)
	if err != nil {
		f.complainOnce(p, "InvalidAnnotation", err.Error())
	}
	return uses
}

// measureNode measures the usage of a node's pods: the node reports the resulting pressure, and
// evicts one pod at a time, in the kubelet's order. Nodes without annotated pods cost nothing. It
// is called whenever a pod of the node changes, and every measureEvery under pressure.
func (f *Fleet) measureNode(n *node, now time.Time) {
	if n.object == nil || n.silent || n.core == nil && !f.beginToMeasure(n) {
		return
	}

	candidates, leaving := n.evictionCandidates()
	verdict := n.core.Step(pressure.Observe(n.object.Status.Capacity, nil, candidates), now)
	if !slices.Equal(n.pressed, verdict.Conditions) {
		n.pressed = verdict.Conditions
		f.checkNode(n, now)
	}

	// Evict one pod at a time: the victim's usage is freed only when the victim has ended.
	if verdict.Starved != nil && !leaving {
		if victim := pressure.Victim(verdict.Starved, pressure.Rank(verdict.Starved, candidates)); victim != nil {
			f.evictPod(n.pods[victim.Pod.UID], victim, now)
		}
	}

	if len(verdict.Conditions) > 0 {
		// Under pressure, measure periodically: grace periods and the transition period end without
		// another event.
		f.timers.setTimer(&n.measure, now.Add(measureEvery))
	} else {
		f.timers.clearTimer(&n.measure)
	}
}

// beginToMeasure starts measuring a node with the first annotated pod. It returns false while the
// node has no such pod.
func (f *Fleet) beginToMeasure(n *node) bool {
	for _, p := range n.pods {
		if p.uses != nil {
			// Each node has a separate core; all have the same thresholds.
			core, err := pressure.NewCore(f.shape.Eviction)
			n.core = core
			return err == nil // never an error: the command has checked the thresholds
		}
	}
	return false
}

// evictionCandidates returns the running pods, each with its usage: zero without an annotation.
// leaving is set if a running pod has been evicted, but its status has not been written yet.
func (n *node) evictionCandidates() (candidates []pressure.Candidate, leaving bool) {
	// Use a fixed order, which Rank keeps among equal pods.
	for _, p := range inOrder(n.pods) {
		if !p.admitted || isTerminal(p.object.Status.Phase) {
			continue
		}
		// The usage of an evicted pod lasts, and the pod stays a candidate, until it has ended.
		leaving = leaving || p.eviction != nil
		candidates = append(candidates, pressure.Candidate{Pod: p.object, Usage: pressure.UsageOf(p.object, p.uses)})
	}
	return candidates, leaving
}

// evictPod emits the kubelet's event now. The status is written when the pod has ended, after the
// eviction's grace period at the latest. A pod that is being deleted or has an action in flight is
// not evicted.
func (f *Fleet) evictPod(p *pod, why *pressure.Eviction, now time.Time) {
	if p.busy || p.object.DeletionTimestamp != nil {
		return // the node is measured again after the action
	}
	takes, _ := f.shape.scriptOf(p.object).stopTakes(p.object, time.Duration(why.Grace)*time.Second)
	p.eviction, p.stopBy = why, now.Add(takes)
	f.reportEvent(p, v1.EventTypeWarning, pressure.Reason, why.Message)
	f.endEvicted(p, now)
}

// endEvicted writes the status of an evicted pod once its processes have ended. As with a kubelet,
// the pod stays in the API with phase Failed.
func (f *Fleet) endEvicted(p *pod, now time.Time) {
	if now.Before(p.stopBy) {
		f.timers.setTimer(&p.timer, p.stopBy)
		return
	}
	status := endedStatus(p.object, true, now)
	status.Phase, status.Reason, status.Message = v1.PodFailed, pressure.Reason, p.eviction.Message
	status.Conditions = append(status.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: p.eviction.Message,
		ObservedGeneration: p.object.Generation, LastTransitionTime: toSeconds(now),
	})
	f.writeStatus(p, status)
}
