// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// recover gives up surges left behind by a killed run: all surges of the caller's own pods, and
// other surges older than surgesFor.
//
// own reports whether a pod is about to leave anyway, or its note is the caller's. Younger notes of
// other pods are ignored, because the process that wrote them may be running; recover is called
// again when the first of these notes expires. A note of a deleted pod counts as left behind,
// however young it is.
//
// Any client with write access to a workload can write its label. The effect is limited to a change
// of that workload's scale by one, and at most mostLeft requests; notes of deleted pods delay
// nothing.
func (ss *surges) recover(own func(p *v1.Pod, note surgeNote) bool) {
	ss.expires = time.Time{}
	foreign := 0
	pods := map[types.UID]*v1.Pod{}
	for p := range world.All[*v1.Pod](ss.cluster.World) {
		pods[p.UID] = p
	}
	for object := range ss.cluster.Objects() {
		scaled, scales := scaledOf(object)
		note, ok := readNote(object.GetLabels()[rebalance.SurgeLabel])
		if !scales || !ok || slices.ContainsFunc(ss.list, func(s *surge) bool { return s.scaled.UID == scaled.UID }) {
			continue
		}
		s := &surge{scaled: scaled, note: note,
			departure: &departure{Departure: rebalance.Departure{Namespace: scaled.Namespace, UID: note.pod}}}
		if p := pods[note.pod]; p != nil {
			if age := ss.wall().Sub(time.Unix(note.begun, 0)); !own(p, note) && age < surgesFor {
				if at := ss.now.Add(min(surgesFor-age, surgesFor)); ss.expires.IsZero() || at.Before(ss.expires) {
					ss.expires = at
				}
				continue
			}
			s.Name, s.From, s.owner, s.marked = p.Name, p.Spec.NodeName, rules.OwnerOf(p), Marked(p)
			for _, other := range ss.cluster.PodsOf(s.owner) {
				if other.UID != p.UID && Marked(other) {
					s.marked = true
					s.also = append(s.also, &departure{Departure: rebalance.Departure{Namespace: other.Namespace, Name: other.Name,
						UID: other.UID, From: other.Spec.NodeName}, owner: s.owner})
				}
			}
		} else if foreign++; foreign > mostLeft {
			continue
		}
		s.foreign = s.Name == ""
		ss.giveUp(s, fmt.Sprintf("an earlier run has left %s with one more replica", scaled))
		ss.list = append(ss.list, s)
	}
	for p := range world.All[*v1.Pod](ss.cluster.World) { // pods still marked after another pod was removed
		if !Marked(p) || p.DeletionTimestamp != nil || !own(p, surgeNote{pod: p.UID}) ||
			slices.ContainsFunc(ss.list, func(s *surge) bool { return s.removes(p.UID) }) {
			continue
		}
		s := &surge{departure: &departure{Departure: rebalance.Departure{Namespace: p.Namespace, Name: p.Name,
			UID: p.UID}, owner: rules.OwnerOf(p)}, marked: true, back: true}
		s.why = "an earlier run has left it with another deletion cost"
		s.enter(clearing, ss.now)
		ss.list = append(ss.list, s)
	}
}

// Annotations of a pod marked by a surge.
const (
	costAnnotation = "controller.kubernetes.io/pod-deletion-cost"
	costBefore     = "berth.dev/deletion-cost-before"
)

// Marked reports whether a surge has changed the pod's deletion cost.
func Marked(p *v1.Pod) bool {
	_, marked := p.Annotations[costBefore]
	return marked
}

// MarkOf returns the annotations to change for a Mark request, or nil if none changes. A nil value
// removes the annotation.
//
// The annotation costBefore keeps the pod's original cost for Clear to restore; it is "" if the pod
// had none. Its presence means that the pod is Marked, and a second mark does not overwrite it.
func MarkOf(p *v1.Pod, a Mark) map[string]any {
	before, marked := p.Annotations[costBefore]
	if !marked {
		before = p.Annotations[costAnnotation]
	}
	cost := strconv.Itoa(math.MinInt32)
	if a.Keep {
		cost = strconv.Itoa(math.MaxInt32)
	}

	switch {
	case !a.Clear && marked && p.Annotations[costAnnotation] == cost, a.Clear && !marked:
		return nil
	case !a.Clear:
		return map[string]any{costAnnotation: cost, costBefore: before}
	case before != "":
		return map[string]any{costAnnotation: before, costBefore: nil}
	}
	return map[string]any{costAnnotation: nil, costBefore: nil}
}
