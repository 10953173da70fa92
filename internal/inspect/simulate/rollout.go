// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Rollout of applied workload changes. Rollouts are not simulated step by step: the old pods that
// the strategy permits replacing are replaced immediately. Surge and maxUnavailable therefore have
// no effect, and the result shows the final nodes of the new pods.

// workloadsOf lists the workloads in manifests, without ReplicaSets of Deployments.
func workloadsOf(set *manifest.Set) (list []metav1.Object) {
	for _, kind := range []string{"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job"} {
		for _, object := range set.OfKind(kind) {
			if kind != "ReplicaSet" || metav1.GetControllerOfNoCopy(object) == nil {
				list = append(list, object)
			}
		}
	}
	return list
}

// takeOver completes the workloads of manifests from the existing ones, like kubectl apply: it
// takes over their identity, the number of replicas if unset, and labels and annotations of the
// template that the manifests do not change. It modifies the set's objects and returns the existing
// versions. It excludes Jobs, because they are immutable.
func (w *workloads) takeOver(set *manifest.Set) map[metav1.Object]*workload.Workload {
	there := map[metav1.Object]*workload.Workload{}
	for _, object := range workloadsOf(set) {
		l := workload.Of(object)
		was := w.table().Named(l.Kind.GroupKind(), object.GetNamespace(), object.GetName())
		if was == nil || l.Kind.GroupKind() == rules.Job {
			continue
		}
		there[object] = was
		// Pods refer to their owner by UID: with another UID, the existing pods would be orphaned.
		object.SetUID(was.Object.GetUID())
		object.SetCreationTimestamp(was.Object.GetCreationTimestamp())
		*l.Template = *applyTemplate(was, l.Template)
		if replicas := workload.ReplicasOf(object); replicas != nil {
			*replicas = cmp.Or(*replicas, was.Replicas)
		}
	}

	return there
}

// applyTemplate returns the result of kubectl apply for a workload's template. The manifest is
// assumed to be complete, except for labels and annotations added by tools such as kubectl rollout
// restart.
func applyTemplate(was *workload.Workload, wanted *v1.PodTemplateSpec) *v1.PodTemplateSpec {
	merged := wanted.DeepCopy()
	merged.Labels, merged.Annotations = overlayMap(was.Template.Labels,
		merged.Labels), overlayMap(was.Template.Annotations, merged.Annotations)
	return merged
}

// overlayMap returns the entries of both maps; entries of the second take precedence.
func overlayMap(a, b map[string]string) map[string]string {
	if len(a) == 0 {
		return b
	}
	sum := maps.Clone(a)
	maps.Copy(sum, b)
	return sum
}

// sameTemplate reports whether two templates are equal with the API server's defaults. Without the
// defaults, applying the same manifest again would look like a change.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(defaultedSpec(a), defaultedSpec(b))
}

// defaultedSpec returns the template's pod spec with the API server's defaults. It does not modify
// the template.
func defaultedSpec(t *v1.PodTemplateSpec) *v1.PodSpec {
	p := &v1.Pod{Spec: *t.Spec.DeepCopy()}
	admission.Default(p)
	return &p.Spec
}

// updateWorkload applies a manifest of an existing workload: it rolls the workload out if its
// template changed, and scales it. was is the previous version, and l is the version merged by
// takeOver.
func (c *controllers) updateWorkload(was, l *workload.Workload, set *manifest.Set) {
	c.workloads.keepWorkload(l.Object)
	if !sameTemplate(was.Template, l.Template) {
		c.workloads.renewed[l.Owner()] = true
		c.rollOut(was, l, set)
	}
	if l.Replicas == nil {
		return
	}
	switch {
	case *l.Replicas != *was.Replicas:
		c.setReplicas(l, int(*l.Replicas))
	case len(workload.Active(c.workloads.replicaSetsOf(l))) < 2: // otherwise a rollout is in progress and continues unchanged
		c.fillUp(l)
	}
}

// rollOut removes the old template's pods, as far as the workload's strategy permits replacing
// them. From then on, a new ReplicaSet creates a Deployment's pods. For a rollout, dropPod creates
// no successors. updateWorkload creates the new pods; for a DaemonSet, makeDaemons below creates
// them.
func (c *controllers) rollOut(was, l *workload.Workload, set *manifest.Set) {
	stays := func(*pod) bool { return false }
	switch o := l.Object.(type) {
	case *appsv1.Deployment:
		if o.Spec.Paused {
			return
		}
	case *appsv1.ReplicaSet, *v1.ReplicationController: // its template applies to new pods only
		return
	case *appsv1.DaemonSet:
		if o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			return
		}
	case *appsv1.StatefulSet:
		strategy := &o.Spec.UpdateStrategy
		if strategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
			return
		}
		stays = func(p *pod) bool { return workload.KeepsRevision(o, workload.OrdinalOf(o, p.Name)) }
	}
	// List the pods before the ReplicaSets, which identify them, are replaced.
	pods := c.podsOf(was)
	if d, ok := l.Object.(*appsv1.Deployment); ok {
		c.workloads.replaceReplicaSets(d, set)
	}
	for _, p := range pods {
		if !stays(p) {
			c.dropPod(p, ByRollout, l.Ref())
		}
	}
	if d, ok := l.Object.(*appsv1.DaemonSet); ok {
		c.makeDaemons(d)
	}
}

// renewedPod returns the pod that replaces an old one if its template has changed since, or nil. It
// applies to pods that leave for another reason than the rollout: the rollout has not reached them
// yet, or does not replace them because of the strategy OnDelete. It returns nil for a
// StatefulSet's pod below the partition, which is recreated from the old template.
func (c *controllers) renewedPod(old *v1.Pod) *v1.Pod {
	owner := rules.OwnerOf(old)
	l := c.workloads.table().OwnedBy(owner)
	if l == nil || !c.workloads.renewed[owner] && !workload.Outdated(l.Object, old) {
		return nil
	}

	switch o := l.Object.(type) {
	case *appsv1.DaemonSet:
		return c.daemonPod(o, workload.DaemonNode(old))
	case *appsv1.ReplicaSet, *v1.ReplicationController:
		return c.podOf(l)
	case *appsv1.StatefulSet:
		if ordinal := workload.OrdinalOf(o, old.Name); o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType ||
			!workload.KeepsRevision(o, ordinal) {
			p, _ := workload.StatefulPod(o, ordinal)
			return p
		}
	}

	return nil
}

// replaceReplicaSets leaves a Deployment only the ReplicaSet of its new template. It drops the old
// ones, which a cluster keeps without pods for rollbacks.
func (w *workloads) replaceReplicaSets(d *appsv1.Deployment, set *manifest.Set) {
	for _, maker := range w.table().MakersOf(workload.Of(d)) {
		w.forgetWorkload(maker)
	}
	for _, r := range set.ReplicaSets {
		if metav1.IsControlledBy(r, d) {
			w.keepWorkload(r)
		}
	}
}
