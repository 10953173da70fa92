// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

func at(seconds int) *metav1.Time {
	return &metav1.Time{Time: start.Add(time.Duration(seconds) * time.Second)}
}

func wrote(manager, subresource string, seconds int, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Time: at(seconds), FieldsV1: metav1.NewFieldsV1(fields)}
}

func TestWitnessIsTheLastWriterOfTaints(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.ManagedFields = []metav1.ManagedFieldsEntry{
		wrote("kubectl-create", "", 1, `{"f:metadata":{"f:labels":{}},"f:spec":{"f:taints":{}}}`),
		wrote("kubectl-taint", "", 5, `{"f:spec":{"f:taints":{}}}`),
		wrote("kubectl-label", "", 9, `{"f:metadata":{"f:labels":{"f:a":{}}}}`),
		wrote("kubelet", "status", 10, `{"f:spec":{"f:taints":{}}}`),
		wrote("broken", "", 11, `{"f:spec":`),
	}
	node.Spec.Taints = []v1.Taint{
		{Key: "a", Effect: v1.TaintEffectNoSchedule},
		{Key: "b", Effect: v1.TaintEffectNoExecute},
	}
	seen := eviction.NodeOf(node)
	if len(seen.Taints) != 1 || seen.Taints[0].Key != "b" {
		t.Errorf("taints %v, want b alone: NoSchedule evicts nobody", seen.Taints)
	}
	if !seen.Witness.Equal(at(5).Time) {
		t.Errorf("witness %v, want the writing of kubectl-taint", seen.Witness)
	}
	node.Spec.Taints[1].TimeAdded = at(4)
	if seen = eviction.NodeOf(node); !seen.Witness.IsZero() {
		t.Error("a witness where every taint has its own time")
	}
}

func TestPodIsBoundWhenScheduledOrCreated(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: *at(1)}}
	if got := eviction.PodOf(pod).Bound; !got.Equal(at(1).Time) {
		t.Errorf("bound by hand at %v, want its creation", got)
	}
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, LastTransitionTime: *at(2)}}
	if got := eviction.PodOf(pod).Bound; !got.Equal(at(1).Time) {
		t.Errorf("bound at %v by a condition that says it is not", got)
	}
	pod.Status.Conditions[0].Status, pod.Status.Conditions[0].LastTransitionTime = v1.ConditionTrue, *at(3)
	if got := eviction.PodOf(pod).Bound; !got.Equal(at(3).Time) {
		t.Errorf("bound at %v, want when it was scheduled", got)
	}
}

func TestMarkedIsOurConditionOnly(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	set := func(status v1.ConditionStatus, reason string, observed int64) eviction.Pod {
		pod.Status.Conditions = []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: status, Reason: reason, Message: eviction.Message, ObservedGeneration: observed,
		}}
		return eviction.PodOf(pod)
	}
	if set(v1.ConditionTrue, "EvictionByEvictionAPI", 0).Marked || set(v1.ConditionFalse, eviction.Reason, 0).Marked {
		t.Error("somebody else's condition counts as ours")
	}
	if p := set(v1.ConditionTrue, eviction.Reason, 2); !p.Marked || p.Observed != 3 {
		t.Errorf("marked %v, observed generation %d, want true and 3", p.Marked, p.Observed)
	}
	pod.Status.Conditions = nil
	if p := eviction.PodOf(pod); p.Observed != 3 {
		t.Errorf("observed generation %d of a pod whose status has none yet, want 3", p.Observed)
	}
}
