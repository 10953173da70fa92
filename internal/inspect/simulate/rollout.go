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

// How an applied change of a workload reaches its pods. Rollouts are not played step by step:
// the pods of the old template that the strategy lets the controller replace are replaced at
// once, so surge and maxUnavailable have no effect, and the answer is where the new pods end
// up.

// workloadsOf lists the workloads that manifests name. ReplicaSets of Deployments are not
// among them.
func workloadsOf(set *manifest.Set) (list []metav1.Object) {
	for _, d := range set.Deployments {
		list = append(list, d)
	}
	for _, r := range set.ReplicaSets {
		if metav1.GetControllerOfNoCopy(r) == nil {
			list = append(list, r)
		}
	}

	for _, r := range set.ReplicationControllers {
		list = append(list, r)
	}
	for _, s := range set.StatefulSets {
		list = append(list, s)
	}
	for _, d := range set.DaemonSets {
		list = append(list, d)
	}

	for _, j := range set.Jobs {
		list = append(list, j)
	}
	return list
}

// takeOver gives the workloads of manifests that exist already what kubectl apply leaves of
// them: their identity, the number of replicas if none is given, and of their template what
// the manifests do not change. It changes the set's objects, and returns what each was
// before. Jobs are not among them: they cannot be changed.
func (w *workloads) takeOver(set *manifest.Set) map[metav1.Object]*workload.Workload {
	there := map[metav1.Object]*workload.Workload{}
	for _, object := range workloadsOf(set) {
		l := workload.Of(object)
		was := w.table().Named(l.Kind.GroupKind(), object.GetNamespace(), object.GetName())
		if was == nil || l.Kind.GroupKind() == rules.Job {
			continue
		}
		there[object] = was
		// Pods name their owner by its UID: with another one, the existing pods would be
		// nobody's.
		object.SetUID(was.Object.GetUID())
		object.SetCreationTimestamp(was.Object.GetCreationTimestamp())
		*l.Template = *applyTemplate(was, l.Template)
		switch o := object.(type) {
		case *appsv1.Deployment:
			o.Spec.Replicas = cmp.Or(o.Spec.Replicas, was.Replicas)
		case *appsv1.ReplicaSet:
			o.Spec.Replicas = cmp.Or(o.Spec.Replicas, was.Replicas)
		case *v1.ReplicationController:
			o.Spec.Replicas = cmp.Or(o.Spec.Replicas, was.Replicas)
		case *appsv1.StatefulSet:
			o.Spec.Replicas = cmp.Or(o.Spec.Replicas, was.Replicas)
		}
	}

	return there
}

// applyTemplate returns what kubectl apply makes of a workload's template. The manifest is taken to
// name all that is wanted, except for labels and annotations: others add these, such as kubectl
// rollout restart.
func applyTemplate(was *workload.Workload, wanted *v1.PodTemplateSpec) *v1.PodTemplateSpec {
	merged := wanted.DeepCopy()
	merged.Labels, merged.Annotations = overlayMap(was.Template.Labels,
		merged.Labels), overlayMap(was.Template.Annotations, merged.Annotations)
	return merged
}

// overlayMap returns the entries of both maps; the second one's take precedence.
func overlayMap(a, b map[string]string) map[string]string {
	if len(a) == 0 {
		return b
	}
	sum := maps.Clone(a)
	maps.Copy(sum, b)
	return sum
}

// sameTemplate reports whether two templates are equal once the API server has filled them
// in. Without the defaults, applying the same manifest again would look like a change.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(defaultedSpec(a), defaultedSpec(b))
}

// defaultedSpec is the template's pod spec with the API server's defaults. The template stays
// as it is.
func defaultedSpec(t *v1.PodTemplateSpec) *v1.PodSpec {
	p := &v1.Pod{Spec: *t.Spec.DeepCopy()}
	admission.Default(p)
	return &p.Spec
}

// updateWorkload applies a workload that exists: it is rolled out if its template changed,
// and scaled. was is the workload before, and l what takeOver has made of the manifest's.
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
	case len(workload.Active(c.workloads.replicaSetsOf(l))) < 2: // else a rollout is under way, which goes on as it was
		c.fillUp(l)
	}
}

// rollOut removes the pods of the old template that the workload's strategy lets it replace.
// Those of a Deployment are made by a new ReplicaSet from then on. dropPod makes none again
// for a rollout: that is left to updateWorkload, which fills up, and to makeDaemons below.
func (c *controllers) rollOut(was, l *workload.Workload, set *manifest.Set) {
	stays := func(*pod) bool { return false }
	switch o := l.Object.(type) {
	case *appsv1.Deployment:
		if o.Spec.Paused {
			return
		}
	case *appsv1.ReplicaSet, *v1.ReplicationController: // its template is for new pods only
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
	// Before the ReplicaSets are replaced: the pods are found by these.
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

// renewedPod returns the pod that its controller makes in place of an old one if its template
// was changed since, or nil. It is for pods that a rollout left alone, such as those of an
// OnDelete strategy, or has not come to yet, and that leave for another reason. A StatefulSet's
// pod below the partition is made again from the old template, so the result for it is nil.
func (c *controllers) renewedPod(old *v1.Pod) *v1.Pod {
	owner := rules.OwnerOf(old)
	l := c.workloads.table().By(owner)
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

// replaceReplicaSets leaves a Deployment the ReplicaSet of its new template only. Old ones,
// which a cluster keeps for rollbacks, have no pods any more and make none.
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
