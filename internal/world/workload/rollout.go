// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Rolling returns why a rollout of a workload is incomplete, by the rules of kubectl rollout
// status, or "". If its controller has not reported a status, as in manifests, the rollout counts
// as complete. Other kinds have no rollouts.
func Rolling(object metav1.Object) string {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return rollingDeployment(o)
	case *appsv1.StatefulSet:
		return rollingStatefulSet(o)
	case *appsv1.DaemonSet:
		return rollingDaemonSet(o)
	}
	return ""
}

// rolledOut is the reason as long as pods of the old template exist, or the controller has not
// observed the change.
const rolledOut = "is being rolled out"

// rollingDeployment implements Rolling. The rollout is complete if all replicas are updated, the
// old replicas are removed, and the updated replicas are available.
func rollingDeployment(d *appsv1.Deployment) string {
	switch s := &d.Status; {
	case s.ObservedGeneration == 0:
		return ""
	case s.ObservedGeneration < d.Generation, s.UpdatedReplicas < ptr.Deref(d.Spec.Replicas, 1), s.Replicas > s.UpdatedReplicas:
		return rolledOut
	default:
		return awaited(s.UpdatedReplicas - s.AvailableReplicas)
	}
}

// rollingStatefulSet implements Rolling. The rollout is complete if all pods at or above the
// partition have the update revision, and all pods are ready. A set with the strategy OnDelete
// counts as complete, since its controller replaces only deleted pods.
func rollingStatefulSet(set *appsv1.StatefulSet) string {
	s, replicas, strategy := &set.Status, ptr.Deref(set.Spec.Replicas, 1), &set.Spec.UpdateStrategy
	rolling := s.UpdateRevision != s.CurrentRevision
	if r := strategy.RollingUpdate; r != nil {
		rolling = r.Partition != nil && s.UpdatedReplicas < replicas-*r.Partition
	}
	switch {
	case s.ObservedGeneration == 0, strategy.Type == appsv1.OnDeleteStatefulSetStrategyType:
		return ""
	case s.ObservedGeneration < set.Generation, rolling:
		return rolledOut
	}
	return awaited(replicas - s.ReadyReplicas)
}

// rollingDaemonSet implements Rolling. The rollout is complete if each eligible node has an updated
// and available pod.
func rollingDaemonSet(set *appsv1.DaemonSet) string {
	switch s := &set.Status; {
	case s.ObservedGeneration == 0, set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType:
		return ""
	case s.ObservedGeneration < set.Generation, s.UpdatedNumberScheduled < s.DesiredNumberScheduled:
		return rolledOut
	default:
		return awaited(s.DesiredNumberScheduled - s.NumberAvailable)
	}
}

// awaited describes the number of pods not yet available; "" if zero.
func awaited(count int32) string {
	switch {
	case count <= 0:
		return ""
	case count == 1:
		return "waits for one of its pods to be available"
	}
	return fmt.Sprintf("waits for %d of its pods to be available", count)
}

// templateGeneration is the annotation of a DaemonSet that counts the changes of its template. The
// label madeOfGeneration of a pod holds the count at the pod's creation.
const (
	templateGeneration = appsv1.DeprecatedTemplateGeneration
	madeOfGeneration   = "pod-template-generation"
)

// Annotations are the annotations of workloads and pods read by forecasts: a Deployment's division
// of its scale between ReplicaSets, the number of changes of a DaemonSet's template, and the source
// of a pod's requests.
var Annotations = []string{scaleSeen, mostSeen, templateGeneration, autoscaled}

// Outdated reports whether the template of a workload has changed since this pod was created, so
// that a successor would differ. The pod remains until it is deleted or the rollout reaches it.
func Outdated(object metav1.Object, p *v1.Pod) bool {
	if set, is := object.(*appsv1.StatefulSet); is {
		rolls := set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType
		if rolls && KeepsRevision(set, OrdinalOf(set, p.Name)) {
			return false
		}
	}
	return isOfAnotherTemplate(object, p)
}

// isOfAnotherTemplate reports whether a workload's pod was created from a template other than the
// current one. Pods of a ReplicaSet always have its template.
func isOfAnotherTemplate(object metav1.Object, p *v1.Pod) bool {
	made, now := "", ""
	switch o := object.(type) {
	case *appsv1.StatefulSet:
		made, now = p.Labels[appsv1.ControllerRevisionHashLabelKey], o.Status.UpdateRevision
	case *appsv1.DaemonSet:
		made, now = p.Labels[madeOfGeneration], o.Annotations[templateGeneration]
	}
	return made != "" && now != "" && made != now
}
