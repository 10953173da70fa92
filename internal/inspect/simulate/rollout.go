package simulate

import (
	"cmp"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// workloadsOf lists the workloads that manifests name. ReplicaSets of Deployments are not among
// them.
func workloadsOf(set *manifest.Set) (list []metav1.Object) {
	for _, d := range set.Deployments {
		list = append(list, d)
	}
	for _, r := range set.ReplicaSets {
		if metav1.GetControllerOfNoCopy(r) == nil {
			list = append(list, r)
		}
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

// takeOver gives the workloads of manifests that exist already what kubectl apply leaves of them:
// their identity, the number of replicas if none is given, and of their template what the manifests
// do not change. It returns what they were before. Jobs are not among them: they cannot be changed.
func (w *workloads) takeOver(set *manifest.Set) map[metav1.Object]*workload {
	there := map[metav1.Object]*workload{}
	for _, object := range workloadsOf(set) {
		l := workloadOf(object)
		was, _ := w.findNamed(l.ref(), object.GetNamespace())
		if was == nil || l.kind == "Job" {
			continue
		}
		there[object] = was
		object.SetUID(was.object.GetUID())
		object.SetCreationTimestamp(was.object.GetCreationTimestamp())
		*l.template = *applyTemplate(was, l.template)
		switch o := object.(type) {
		case *appsv1.Deployment:
			o.Spec.Replicas = cmp.Or(o.Spec.Replicas, was.replicas)
		case *appsv1.ReplicaSet:
			o.Spec.Replicas = cmp.Or(o.Spec.Replicas, was.replicas)
		case *appsv1.StatefulSet:
			o.Spec.Replicas = cmp.Or(o.Spec.Replicas, was.replicas)
		}
	}

	return there
}

// applyTemplate returns what kubectl apply makes of a workload's template. The manifest is taken to
// name all that is wanted, except for labels and annotations: others add these, such as kubectl
// rollout restart.
func applyTemplate(was *workload, wanted *v1.PodTemplateSpec) *v1.PodTemplateSpec {
	merged := wanted.DeepCopy()
	merged.Labels, merged.Annotations = overlayMap(was.template.Labels,
		merged.Labels), overlayMap(was.template.Annotations, merged.Annotations)
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

// sameTemplate reports whether two templates are equal once the API server has filled them in.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(defaultedSpec(a), defaultedSpec(b))
}

func defaultedSpec(t *v1.PodTemplateSpec) *v1.PodSpec {
	p := &v1.Pod{Spec: *t.Spec.DeepCopy()}
	admission.Default(p)
	return &p.Spec
}

// updateWorkload applies a workload that exists: it is rolled out if its template changed, and
// scaled.
func (c *controllers) updateWorkload(was, l *workload, set *manifest.Set) {
	c.workloads.keepWorkload(l.object)
	if !sameTemplate(was.template, l.template) {
		c.workloads.renewed[controllerName(l.kind, l.object.GetNamespace(), l.object.GetName())] = true
		c.rollOut(was, l, set)
	}
	if l.replicas == nil {
		return
	}
	if *l.replicas == *was.replicas {
		c.fillUp(l, int(*l.replicas))
	} else {
		c.setReplicas(l, int(*l.replicas))
	}
}

// rollOut removes the pods of the old template that the workload's strategy lets it replace. Those
// of a Deployment are made by a new ReplicaSet from then on.
func (c *controllers) rollOut(was, l *workload, set *manifest.Set) {
	stays := func(*pod) bool { return false }
	switch o := l.object.(type) {
	case *appsv1.Deployment:
		if o.Spec.Paused {
			return
		}
	case *appsv1.ReplicaSet: // its template is for new pods only
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
		stays = func(p *pod) bool { return staysBehind(o, ordinalOf(o, p.Name)) }
	}
	pods := c.podsOf(was)
	if d, ok := l.object.(*appsv1.Deployment); ok {
		c.workloads.replaceReplicaSets(d, set)
	}
	for _, p := range pods {
		if !stays(p) {
			c.dropPod(p, ByRollout, l.ref())
		}
	}
	if d, ok := l.object.(*appsv1.DaemonSet); ok {
		c.makeDaemons(d)
	}
}

// staysBehind reports whether a rolling update leaves the set's pod of that number at the old
// template.
func staysBehind(set *appsv1.StatefulSet, ordinal int) bool {
	r := set.Spec.UpdateStrategy.RollingUpdate
	return r != nil && r.Partition != nil && ordinal < int(*r.Partition)
}

// renewedPod returns the pod that its controller makes in place of an old one if its template was
// changed since, or nil.
func (c *controllers) renewedPod(old *v1.Pod, owner *metav1.OwnerReference) *v1.Pod {
	if !c.workloads.renewed[controllerName(owner.Kind, old.Namespace, owner.Name)] {
		return nil
	}
	l, err := c.workloads.findNamed(owner.Kind+"/"+owner.Name, old.Namespace)
	if err != nil {
		return nil
	}

	switch o := l.object.(type) {
	case *appsv1.DaemonSet:
		return c.daemonPod(o, manifest.DaemonNode(old))
	case *appsv1.ReplicaSet:
		return c.podOf(o, l.kind, l.template)
	case *appsv1.StatefulSet:
		if ordinal := ordinalOf(o, old.Name); o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType ||
			!staysBehind(o, ordinal) {
			p, _ := manifest.StatefulPod(o, ordinal)
			return p
		}
	}

	return nil
}

// replaceReplicaSets leaves a Deployment the ReplicaSet of its new template only.
func (w *workloads) replaceReplicaSets(d *appsv1.Deployment, set *manifest.Set) {
	for _, r := range w.makersOf(workloadOf(d)) {
		w.forgetWorkload(workloadOf(r))
	}
	for _, r := range set.ReplicaSets {
		if metav1.IsControlledBy(r, d) {
			w.keepWorkload(r)
		}
	}
}
