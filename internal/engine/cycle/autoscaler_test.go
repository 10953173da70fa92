// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"cmp"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

// statuses holds a story's pods in their API state: the watched object plus the core's later
// writes.
type statuses map[types.UID]*v1.Pod

// show processes a pod event from the watch. It keeps the written statuses, because the pod events
// of a story do not repeat them.
func (s statuses) show(e Event) {
	switch e := e.(type) {
	case Seen:
		if p, ok := e.Object.(*v1.Pod); ok {
			p = p.DeepCopy()
			if old := s[p.UID]; old != nil {
				p.Status.Conditions = old.Status.Conditions
				p.Status.NominatedNodeName = cmp.Or(p.Status.NominatedNodeName, old.Status.NominatedNodeName)
			}
			s[p.UID] = p
		}
	case Gone:
		delete(s, e.Object.GetUID())
	}
}

func (s statuses) write(action Action) {
	a, ok := action.(WriteStatus)
	if !ok || s[a.Pod.UID] == nil {
		return
	}
	p := s[a.Pod.UID]
	if a.Nominate != nil {
		p.Status.NominatedNodeName = *a.Nominate
	}
	if a.Condition != nil {
		p.Status.Conditions = []v1.PodCondition{*a.Condition}
	}
}

// autoscalers lists the pods for which autoscalers would add nodes, by the rules of
// docs/concepts/autoscalers.md.
func (s statuses) autoscalers() string {
	var list strings.Builder
	for _, uid := range sorted(s) {
		p := s[uid]
		if p.Spec.NodeName != "" {
			continue
		}
		var condition v1.PodCondition
		for _, condition = range p.Status.Conditions {
		}
		unschedulable := condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonUnschedulable
		var by []string
		if owner := metav1.GetControllerOf(p); unschedulable && p.Status.NominatedNodeName == "" && (owner == nil || owner.Kind != "DaemonSet") {
			if condition.Status == v1.ConditionFalse && p.DeletionTimestamp == nil {
				by = append(by, "cluster-autoscaler")
			}
			by = append(by, "Karpenter")
		}
		if by == nil {
			by = []string{"none"}
		}
		why := condition.Reason
		if why == "" {
			why = "no condition"
		}
		if p.Status.NominatedNodeName != "" {
			why += ", nominated to " + p.Status.NominatedNodeName
		}
		fmt.Fprintf(&list, "%s: %s (%s)\n", p.Name, strings.Join(by, ", "), why)
	}
	return list.String()
}
