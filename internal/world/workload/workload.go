// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Most is the maximum number of pods that workloads are expanded to, each and in total. It is
// several times the number of pods of a whole cluster in Kubernetes' tests. Any user with
// permission to create a Deployment may specify 2,000,000,000 replicas, whatever the namespace's
// quota.
const Most = 500_000

// Workload is a controller's object and the template of its pods. Template points into the object.
type Workload struct {
	Kind     schema.GroupVersionKind
	Object   metav1.Object
	Template *v1.PodTemplateSpec
	// Replicas is the wanted number of pods, with the API's default; nil for kinds without such a
	// field. It is a copy, so setting it does not change the object; see Resized.
	Replicas *int32
}

// Of returns an object as a workload; nil if it is not one. The object is not copied.
func Of(object metav1.Object) *Workload {
	apps := appsv1.SchemeGroupVersion.WithKind
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &Workload{apps("Deployment"), o, &o.Spec.Template, orOne(o.Spec.Replicas)}
	case *appsv1.ReplicaSet:
		return &Workload{apps("ReplicaSet"), o, &o.Spec.Template, orOne(o.Spec.Replicas)}
	case *appsv1.StatefulSet:
		return &Workload{apps("StatefulSet"), o, &o.Spec.Template, orOne(o.Spec.Replicas)}
	case *appsv1.DaemonSet:
		return &Workload{apps("DaemonSet"), o, &o.Spec.Template, nil}

	case *batchv1.Job:
		return &Workload{batchv1.SchemeGroupVersion.WithKind("Job"), o, &o.Spec.Template, nil}
	case *v1.ReplicationController:
		l := &Workload{v1.SchemeGroupVersion.WithKind("ReplicationController"), o, o.Spec.Template, orOne(o.Spec.Replicas)}
		if l.Template == nil { // it creates no pods
			l.Template, l.Replicas = &v1.PodTemplateSpec{}, new(int32)
		}
		return l
	}
	return nil
}

// orOne returns a copy of the number, or the API's default of one.
func orOne(n *int32) *int32 { return ptr.To(ptr.Deref(n, 1)) }

// ReplicasOf returns the field with a workload's wanted number of pods; nil for kinds without it.
func ReplicasOf(object metav1.Object) **int32 {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Replicas
	case *appsv1.ReplicaSet:
		return &o.Spec.Replicas
	case *appsv1.StatefulSet:
		return &o.Spec.Replicas
	case *v1.ReplicationController:
		return &o.Spec.Replicas
	}
	return nil
}

// Ref returns the workload's kind and name in the form Kind/name.
func (l *Workload) Ref() string { return l.Kind.Kind + "/" + l.Object.GetName() }

// Owner returns the result of [rules.OwnerOf] for the workload's pods.
func (l *Workload) Owner() rules.Owner { return rules.AsOwner(l.Kind.GroupKind(), l.Object) }

// Resized returns a copy of the workload's object with that number of replicas. The copy shares all
// other fields with the object. Kinds without replicas are returned unchanged.
func (l *Workload) Resized(replicas int) metav1.Object {
	var resized metav1.Object
	switch o := l.Object.(type) {
	case *appsv1.Deployment:
		resized = new(*o)
	case *appsv1.ReplicaSet:
		resized = new(*o)
	case *v1.ReplicationController:
		resized = new(*o)
	case *appsv1.StatefulSet:
		resized = new(*o)
	default:
		return l.Object
	}
	*ReplicasOf(resized) = new(int32(replicas))
	return resized
}

// NewPod makes a pod from the template, without a name. It shares nothing with the template, and
// its labels are not nil.
func (l *Workload) NewPod() *v1.Pod {
	template := l.Template.DeepCopy()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.Object.GetNamespace(), Labels: template.Labels, Annotations: template.Annotations, Finalizers: template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.Object, l.Kind)},
		},
		Spec:   template.Spec,
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	return pod
}

// Succession is the time at which a controller replaces a deleted pod. It decides whether the
// victim and its replacement exist simultaneously.
type Succession int

// The values of Succession.
const (
	None     Succession = iota // no controller replaces it
	AtOnce                     // as soon as the pod is terminating
	WhenGone                   // after the pod has ended
)

// SuccessionOf returns when a controller replaces a pod. job is the controller if it is a Job that
// was read, and nil otherwise. Controllers of unknown kinds are assumed to act immediately. Static
// pods, owned by a Node, are not managed by the API server.
func SuccessionOf(controller *metav1.OwnerReference, job *batchv1.Job) Succession {
	switch rules.KindOf(controller) {
	default:
		return AtOnce
	case rules.KindOf(nil), rules.Node:
		return None
	case rules.StatefulSet, rules.DaemonSet:
		return WhenGone
	case rules.Job:
		switch {
		case job == nil:
			return AtOnce
		case !Replaces(job):
			return None
		case AwaitsFailure(job):
			return WhenGone
		}
		return AtOnce
	}
}

// AwaitsFailure reports whether a Job replaces its pods only after they have ended. This is the
// API's default for Jobs with a podFailurePolicy.
func AwaitsFailure(job *batchv1.Job) bool {
	return job.Spec.PodFailurePolicy != nil || ptr.Deref(job.Spec.PodReplacementPolicy, "") == batchv1.Failed
}

// Successor returns the replacement that a pod's controller creates. It is derived from the pod
// itself, without the pod's status, which includes its generated claims. A StatefulSet's pod keeps
// its name; name returns the new name of other pods, given the new pod and its controller. The old
// pod is not changed.
func Successor(pod *v1.Pod, uid types.UID, name func(p *v1.Pod, controller *metav1.OwnerReference) string, now metav1.Time) *v1.Pod {
	next := pod.DeepCopy()
	next.UID, next.CreationTimestamp = uid, now
	next.ResourceVersion, next.DeletionTimestamp, next.DeletionGracePeriodSeconds = "", nil, nil
	next.Spec.NodeName = ""
	next.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: pod.Status.QOSClass}

	switch controller := metav1.GetControllerOfNoCopy(next); rules.KindOf(controller) {
	case rules.KindOf(nil), rules.StatefulSet:
	case rules.DaemonSet:
		// The old pod may have been bound to its node by name; the controller pins by affinity.
		PinTo(next, DaemonNode(pod))
		next.Name = name(next, controller)
	default:
		next.Name = name(next, controller)
	}
	return next
}

// Next returns the next pod created by the controller, under the pod's own name: from the
// controller's current template, or with the size before a resize in place. If neither makes a
// difference, Next returns the pod itself.
func (t *Table) Next(p *v1.Pod) *v1.Pod {
	l := t.ControllerOf(p)
	if l == nil {
		return p
	}
	if set, is := l.Object.(*appsv1.StatefulSet); is && Outdated(set, p) {
		return updated(set, p)
	}
	return t.AsMade(p)
}

// updated returns a set's pod created from the current template, with the additions that admission
// made to the existing pod: the priority of the same class, the overhead of the same runtime, and
// the toleration seconds for an unresponsive node.
func updated(set *appsv1.StatefulSet, p *v1.Pod) *v1.Pod {
	ordinal := OrdinalOf(set, p.Name)
	if ordinal < 0 {
		return p
	}
	next, _ := StatefulPod(set, ordinal)
	next.UID, next.Labels[appsv1.ControllerRevisionHashLabelKey] = p.UID, set.Status.UpdateRevision
	admission.Default(next)
	admission.DefaultPodResources(next)

	to, from := &next.Spec, &p.Spec
	if to.PriorityClassName == from.PriorityClassName {
		to.Priority, to.PreemptionPolicy = from.Priority, from.PreemptionPolicy
	}
	if ptr.Deref(to.RuntimeClassName, "") == ptr.Deref(from.RuntimeClassName, "") {
		to.Overhead = from.Overhead
	}
	for _, has := range from.Tolerations {
		silent := has.Key == v1.TaintNodeNotReady || has.Key == v1.TaintNodeUnreachable
		if silent && !slices.ContainsFunc(to.Tolerations, func(o v1.Toleration) bool { return o.Key == has.Key }) {
			to.Tolerations = append(to.Tolerations, has)
		}
	}

	next.Status.QOSClass = rules.ComputeQOS(next)
	return next
}
