// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/disruption"
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
		// The template replaces the old one, except for labels and annotations added by tools such
		// as kubectl rollout restart.
		l.Template.Labels = overlayMap(was.Template.Labels, l.Template.Labels)
		l.Template.Annotations = overlayMap(was.Template.Annotations, l.Template.Annotations)
		if replicas := workload.ReplicasOf(object); replicas != nil {
			*replicas = cmp.Or(*replicas, was.Replicas)
		}
	}

	return there
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
	// Without the API server's defaults, applying the same manifest again would look like a change.
	a, b := was.Template, l.Template
	if !equality.Semantic.DeepEqual(a.Labels, b.Labels) || !equality.Semantic.DeepEqual(a.Annotations, b.Annotations) ||
		!equality.Semantic.DeepEqual(defaultedSpec(a), defaultedSpec(b)) {
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
		stays = func(p *pod) bool { return workload.KeepsRevision(o, workload.OrdinalOf(o, p.Name())) }
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

// asReplica returns the controller's view of a pod, which determines the order of removal.
func (p *pod) asReplica() *workload.Replica {
	ready := !p.unready && (p.tried || disruption.IsReady(p.object)) // a pod placed by this world counts as ready
	return &workload.Replica{
		Object: p.object, UID: p.UID(), Node: p.NodeName,
		Phase: phaseOf(p), Ready: ready, Since: readySince(p), Created: p.Created.Time(),
	}
}

// phaseOf returns a pod's progress. A pod placed by this world is running, and so is a pod of a
// hand-written manifest, which is Pending only by default.
func phaseOf(p *pod) workload.Phase {
	switch said := p.object.Status.Phase; {
	case p.NodeName == "":
		return workload.Pending
	case p.tried:
		return workload.Running
	case said == v1.PodUnknown:
		return workload.Unknown
	case said == v1.PodPending && disruption.Ungoverned(p.object):
		return workload.Pending
	}
	return workload.Running
}

// readySince returns the time since which the pod is ready: from its condition or, without one,
// from its arrival on the node.
func readySince(p *pod) time.Time {
	if c := rules.PodCondition(&p.object.Status, v1.PodReady); c != nil && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	return p.since
}

// scaleWorkload carries out a Scale. Scaling a ReplicaSet of a Deployment has no lasting effect,
// like in a cluster: scaleWorkload scales it, lets the Deployment revert that, and adds a note.
// Scaling a workload being deleted has no effect either.
func (c *controllers) scaleWorkload(op *Scale) (*Done, error) {
	if kind, _, _ := strings.Cut(op.Workload, "/"); slices.Contains([]string{"pod", "pods", "po"}, kind) {
		return nil, fmt.Errorf("%q: a pod has no replicas: name a deployment, replicaset or statefulset", op.Workload)
	}
	l, err := c.workloads.findNamed(op.Workload, op.Namespace)
	switch {
	case err != nil:
		return nil, err
	case l.Replicas == nil:
		return nil, fmt.Errorf("%s has no replicas to set", op.Workload)
	case op.Replicas < 0 || op.Replicas > MostPods:
		return nil, fmt.Errorf("%d replicas: must be from 0 to %d", op.Replicas, MostPods)
	case len(c.workloads.table().MakersOf(l)) == 0:
		return nil, fmt.Errorf("%s has no ReplicaSet that could be read, so that its pods are not known", op.Workload)
	}

	if l.Object.GetDeletionTimestamp() != nil {
		c.workloads.keepWorkload(l.Resized(op.Replicas))
		return &Done{Notes: []string{op.Workload + " is being deleted: its controller no longer creates or deletes pods"}}, nil
	}
	c.setReplicas(l, op.Replicas)
	// The Deployment immediately reverts the number, so the pods are removed and recreated.
	owner := c.workloads.table().DeploymentOf(l)
	if owner == nil {
		return &Done{}, nil
	}

	c.workloads.keepWorkload(l.Object)
	c.fillUp(l)
	return &Done{Notes: []string{fmt.Sprintf("%s belongs to %s, which sets its replicas back: scale that",
		op.Workload, strings.ToLower(owner.Ref()))}}, nil
}

// setReplicas sets the workload's number of replicas and makes its controller react.
func (c *controllers) setReplicas(l *workload.Workload, replicas int) {
	c.report.addEvent(Event{Kind: "Scaled", Message: fmt.Sprintf("%s %s/%s from %d to %d", strings.ToLower(l.Kind.Kind),
		l.Object.GetNamespace(), l.Object.GetName(), len(c.podsOf(l)), replicas)})
	c.workloads.keepWorkload(l.Resized(replicas))
	c.fillUp(workload.Of(l.Resized(replicas)))
}

// fillUp removes a workload's surplus pods and creates its missing ones. Replicas must not be nil.
func (c *controllers) fillUp(l *workload.Workload) {
	switch o := l.Object.(type) {
	case *appsv1.StatefulSet:
		c.fillOrdinals(l, o, int(*l.Replicas))
		return
	case *appsv1.Deployment:
		for _, set := range workload.ScaleSets(o, c.workloads.replicaSetsOf(l)) {
			c.workloads.keepWorkload(set)
			c.fillUp(workload.Of(set))
		}
		return
	}

	pods, replicas := c.podsOf(l), int(*l.Replicas)
	// podsOf lists pods in the controller's order of removal.
	for _, p := range pods[:max(0, len(pods)-replicas)] {
		c.dropPod(p, ByScaling, l.Ref())
	}
	for i := len(pods); i < replicas && !c.allowed.mustStop(); i++ {
		c.pods.createPod(c.podOf(l), false)
	}
}

// replicaSetsOf returns the ReplicaSets of a Deployment.
func (w *workloads) replicaSetsOf(l *workload.Workload) (sets []*appsv1.ReplicaSet) {
	for _, maker := range w.table().MadeBy(l) {
		if set, ok := maker.Object.(*appsv1.ReplicaSet); ok {
			sets = append(sets, set)
		}
	}
	return sets
}

// fillOrdinals is fillUp for a StatefulSet, where the ordinals determine surplus and missing pods.
// If an ordinal's old pod has not ended yet, or a finalizer keeps it, fillOrdinals waits for its
// end. If the set was just rolled out, all missing pods are created together, as with
// podManagementPolicy Parallel, because rollouts are not simulated step by step.
func (c *controllers) fillOrdinals(l *workload.Workload, set *appsv1.StatefulSet, replicas int) {
	if workload.InOrder(set) && !c.workloads.renewed[l.Owner()] {
		c.proceed(set)
		return
	}
	for _, p := range c.podsOf(l) {
		if !workload.HasReplica(set, p.Name(), replicas) {
			c.dropPod(p, ByScaling, l.Ref())
		}
	}
	first := workload.FirstOrdinal(set)
	for ordinal := first; ordinal < first+replicas && !c.allowed.mustStop(); ordinal++ {
		if p := c.pods.named[Name{set.Namespace, workload.OrdinalName(set, ordinal)}]; p == nil || isReplaceable(p) {
			c.makeOrdinal(set, ordinal)
		}
	}
}
