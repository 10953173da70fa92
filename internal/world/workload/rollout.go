package workload

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Rolling returns why a rollout of a workload is not done, by the rules of kubectl
// rollout status, or "". Of a workload whose controller has not reported anything, as
// in manifests, it is done. Other kinds have no rollouts.
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

// rolledOut is the reason as long as pods of the old template are there, or the
// controller has not seen the change.
const rolledOut = "is being rolled out"

// rollingDeployment: all replicas are updated, old ones are gone, and the updated
// ones are available.
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

// rollingStatefulSet: all pods have the update revision, or those above the partition
// do, and all are ready. A set whose pods others have to delete (OnDelete) is never
// rolled out by itself.
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

// rollingDaemonSet: all nodes that should have a pod have an updated one that is
// available.
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

// awaited says how many pods are not available yet; "" if none.
func awaited(count int32) string {
	switch {
	case count <= 0:
		return ""
	case count == 1:
		return "waits for one of its pods to be available"
	}
	return fmt.Sprintf("waits for %d of its pods to be available", count)
}

// templateGeneration is the annotation of a DaemonSet that counts the changes of its template.
// Its pods have the count, as it was when they were made, in the label madeOfGeneration.
const (
	templateGeneration = appsv1.DeprecatedTemplateGeneration
	madeOfGeneration   = "pod-template-generation"
)

// Annotations are those of workloads and pods that forecasts read: how a Deployment's ReplicaSets
// share its scale, how often a DaemonSet's template was changed, and what set a pod's requests.
var Annotations = []string{scaleSeen, mostSeen, templateGeneration, autoscaled}

// Outdated reports whether a workload makes another pod in place of this one of its pods: its
// template was changed since, and waits for pods to be deleted or for the rollout to come to this
// one.
func Outdated(object metav1.Object, p *v1.Pod) bool {
	if set, is := object.(*appsv1.StatefulSet); is {
		rolls := set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType
		if rolls && KeepsRevision(set, OrdinalOf(set, p.Name)) {
			return false
		}
	}
	return isOfAnotherTemplate(object, p)
}

// isOfAnotherTemplate reports whether a workload's pod was made of another template than it has
// now. Pods of a ReplicaSet are made of the one that it has.
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
