// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package reconstruct

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// rivalPod is a pod that may have been decided before or after the judged pod.
type rivalPod struct {
	number int
	item   *queue.Item
	bound  *v1.Pod      // the bound pod, if its binding event is still held
	placed *cluster.Pod // the placed pod, if its binding has been processed
	ahead  bool         // ahead of the judged pod in the queue
}

// podsAround returns the pods that were pending at the same time as the judged pod. ordered is set
// if the order of their decisions is known.
func (h *reconstruction) podsAround(item *queue.Item) (list []rivalPod, ordered bool) {
	since := h.earliest(item)
	for _, b := range h.bound {
		if p := h.cluster.Pod(b.Pod.UID); !b.at.Before(since) && p != nil && p.Node != nil {
			list = append(list, rivalPod{item: b.Item, placed: p})
		}
	}

	for uid, pod := range h.foreseen {
		if i := h.queue.Get(uid); i != nil && i != item && h.cluster.Pod(uid) == nil && h.cluster.Node(pod.Spec.NodeName) != nil {
			list = append(list, rivalPod{item: i, bound: pod})
		}
	}

	slices.SortFunc(list, func(a, b rivalPod) int { return cmp.Compare(a.item.Came(), b.item.Came()) })
	ordered = h.isOrdered(item)
	own := rules.Priority(item.Pod)
	for i := range list {
		o := &list[i]
		its := rules.Priority(o.item.Pod)
		o.number, o.ahead = i, its > own || its == own && o.item.Came() < item.Came()
		ordered = ordered && its == own && h.isOrdered(o.item) && o.item.Pod.Spec.SchedulerName == item.Pod.Spec.SchedulerName
	}

	return list, ordered
}

// isOrdered reports whether a pod was decided in arrival order: at its first attempt.
func (h *reconstruction) isOrdered(item *queue.Item) bool {
	_, rejected := h.rejected[item.Pod.UID]
	return !rejected && !item.Patient && item.Since.After(h.began)
}

// evaluateWith evaluates the nodes as if, of the pods in around, exactly the pods for which
// isPlaced returns true were placed. It restores the state afterwards.
func (h *reconstruction) evaluateWith(around []rivalPod, isPlaced func(*rivalPod) bool, evaluate func() *decide.Evaluation) *decide.Evaluation {
	var undo []func()
	for i := range around {
		o := &around[i]
		switch decided := isPlaced(o); {
		case decided && o.bound != nil:
			p := h.cluster.Pending(o.bound)
			h.cluster.Place(p, h.cluster.Node(o.bound.Spec.NodeName))
			undo = append(undo, func() { h.cluster.RemovePod(p.UID()) })
		case !decided && o.placed != nil:
			p, on := o.placed, o.placed.Node
			h.cluster.RemovePod(p.UID())
			undo = append(undo, func() { h.cluster.Place(p, on) })
		}
	}

	defer func() {
		for _, back := range slices.Backward(undo) {
			back()
		}
	}()
	return evaluate()
}
