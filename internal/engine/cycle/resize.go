// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file makes room for resizes deferred by a kubelet. The pod stays on its node, and is an item
// of the queue until the kubelet accepts the resize. Its request after the resize counts on the
// node throughout, so no other pod takes the room of its victims, and it needs no nomination. As
// upstream, neither an event nor a condition is written to the running pod.

// preempts reports whether a placed pod has a deferred resize for which other pods may be
// preempted.
func (i *intake) preempts(pod *v1.Pod) bool {
	return i.options.ResizePreemption && i.shadow == nil && helper.IsPodResizeDeferred(pod) &&
		!rules.IsTerminal(pod) && pod.DeletionTimestamp == nil && i.profiles.servesName(pod.Spec.SchedulerName)
}

// queueResize adds the deferred resize of a placed pod to the queue, or updates it.
func (i *intake) queueResize(pod *v1.Pod) {
	class := i.cluster.ResizeClass(pod)
	pod = i.trimmer.trimPod(pod, class)
	item := i.queue.Get(pod.UID)
	if item == nil {
		i.queue.Add(pod, class, i.now)
		return
	}
	var actions queue.Action
	if takesLess(&item.Class.Requests, &class.Requests) {
		actions |= queue.UpdatePodScaleDown
	}
	if takesLess(&class.Requests, &item.Class.Requests) {
		actions |= queue.UpdatePodScaleUp
	}
	i.queue.Update(item, pod, class, actions, i.now)
}

// decideResize decides a deferred resize while the pod is hypothetically off its node. If the
// resize fits, the pod waits for its kubelet; otherwise it may preempt.
func (s *attempts) decideResize(item *queue.Item, answers any, questions int) {
	if why := s.resizeObstacle(item); why != "" {
		a := s.newAttempt(s.profiles.byName[item.Pod.Spec.SchedulerName], item)
		s.parkResize(a, why)
		return
	}
	off := gang.Without(s.cluster)
	off.Remove(s.cluster.Pod(item.Pod.UID))
	// decidePod recovers from panics, after which the pod must be back on its node.
	defer off.RestoreAfter(0)
	s.decidePod(item, answers, questions)
}

// resizeObstacle returns the reason why a deferred resize is not decided now, or "".
func (s *attempts) resizeObstacle(item *queue.Item) string {
	own, n := s.cluster.Pod(item.Pod.UID), s.cluster.Node(item.Pod.Spec.NodeName)
	switch {
	case n == nil || own == nil || own.Node != n:
		return "the pod's node is gone"
	case own.Terminating:
		return "the pod is being deleted"
	case n.Taints.SparesPods:
		return "node had resize preemption disabled"
	case !s.profiles.byName[item.Pod.Spec.SchedulerName].ConfinesResizes():
		return "the profile lacks NodeAffinity, which confines the resize to its node"
	}
	return ""
}

// parkResize makes a deferred resize wait for an event of its node.
func (s *attempts) parkResize(a *podAttempt, why string) {
	s.requeueUnschedulable(a, &unschedulableReason{message: why, plugins: []string{plugins.DeferredResizes}}, nil)
}
