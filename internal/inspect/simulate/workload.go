package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// workload is a controller's object and the template of its pods.
type workload struct {
	kind     string
	object   metav1.Object
	template *v1.PodTemplateSpec
	replicas *int32 // nil for kinds whose number of pods is not a field
}

// workloads are the objects of the controllers that make pods.
type workloads struct {
	set     *manifest.Set   // what the world was made from, with the workloads as they are now
	deleted map[string]bool // those that were deleted, by controllerName
	// renewed are those whose template was changed, by controllerName: pods of the old one may be
	// left.
	renewed map[string]bool
	// failures counts the pods that Jobs have lost since the beginning, and failed has the Jobs
	// that have failed because of it, by controllerName. Both forget a Job that is deleted.
	failures map[string]int64
	failed   map[string]bool
}

// findNamed finds a workload by TYPE/NAME as kubectl writes it, short names included.
func (w *workloads) findNamed(ref, namespace string) (*workload, error) {
	kind, name, ok := strings.Cut(ref, "/")
	if !ok {
		return nil, fmt.Errorf("%q: must be TYPE/NAME, as deployment/web", ref)
	}

	namespace = cmp.Or(namespace, v1.NamespaceDefault)
	var found metav1.Object
	switch id := (Name{namespace, name}); strings.ToLower(kind) {
	case "deployment", "deployments", "deploy":
		found = findByName(w.set.Deployments, id)
	case "replicaset", "replicasets", "rs":
		found = findByName(w.set.ReplicaSets, id)
	case "replicationcontroller", "replicationcontrollers", "rc":
		found = findByName(w.set.ReplicationControllers, id)
	case "statefulset", "statefulsets", "sts":
		found = findByName(w.set.StatefulSets, id)
	case "daemonset", "daemonsets", "ds":
		found = findByName(w.set.DaemonSets, id)
	case "job", "jobs":
		found = findByName(w.set.Jobs, id)
	default:
		return nil, fmt.Errorf("%q: the type must be pod, deployment, replicaset, replicationcontroller, statefulset, "+
			"daemonset or job", ref)
	}

	if found == nil {
		return nil, fmt.Errorf("there is no %s %s/%s", strings.ToLower(kind), namespace, name)
	}
	return workloadOf(found), nil
}

// findByName returns the object of that name, or nil.
func findByName[T metav1.Object](list []T, name Name) metav1.Object {
	for _, o := range list {
		if o.GetName() == name.Name && o.GetNamespace() == name.Namespace {
			return o
		}
	}
	return nil
}

func workloadOf(object metav1.Object) *workload {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &workload{"Deployment", o, &o.Spec.Template, replicasOf(o.Spec.Replicas)}
	case *appsv1.ReplicaSet:
		return &workload{"ReplicaSet", o, &o.Spec.Template, replicasOf(o.Spec.Replicas)}
	case *v1.ReplicationController:
		if o.Spec.Template == nil {
			return &workload{"ReplicationController", o, &v1.PodTemplateSpec{}, new(int32)} // it makes no pods
		}
		return &workload{"ReplicationController", o, o.Spec.Template, replicasOf(o.Spec.Replicas)}
	case *appsv1.StatefulSet:
		return &workload{"StatefulSet", o, &o.Spec.Template, replicasOf(o.Spec.Replicas)}
	case *appsv1.DaemonSet:
		return &workload{"DaemonSet", o, &o.Spec.Template, nil}
	case *batchv1.Job:
		return &workload{"Job", o, &o.Spec.Template, nil}
	}
	return nil
}

func replicasOf(n *int32) *int32 { return ptr.To(ptr.Deref(n, 1)) }

// ref names the workload as references do.
func (l *workload) ref() string { return l.kind + "/" + l.object.GetName() }

// keepWorkload adds a workload to the set, or replaces the one of the same name.
func (w *workloads) keepWorkload(object metav1.Object) {
	s := w.set
	delete(w.deleted, controllerName(workloadOf(object).kind, object.GetNamespace(), object.GetName()))
	switch o := object.(type) {
	case *appsv1.Deployment:
		s.Deployments = replaceOrAppend(s.Deployments, o)
	case *appsv1.ReplicaSet:
		s.ReplicaSets = replaceOrAppend(s.ReplicaSets, o)
	case *v1.ReplicationController:
		s.ReplicationControllers = replaceOrAppend(s.ReplicationControllers, o)
	case *appsv1.StatefulSet:
		s.StatefulSets = replaceOrAppend(s.StatefulSets, o)
	case *appsv1.DaemonSet:
		s.DaemonSets = replaceOrAppend(s.DaemonSets, o)
	case *batchv1.Job:
		s.Jobs = replaceOrAppend(s.Jobs, o)
	}
}

// replaceOrAppend returns the list with the object in it, in the place of the one of the same name.
func replaceOrAppend[T metav1.Object](list []T, object T) []T {
	for i, o := range list {
		if o.GetName() == object.GetName() && o.GetNamespace() == object.GetNamespace() {
			list = slices.Clone(list)
			list[i] = object
			return list
		}
	}
	return append(list, object)
}

// forgetWorkload removes a workload from the set. Its pods are not made again from then on, and a
// Job that is made anew under its name begins without failures.
func (w *workloads) forgetWorkload(l *workload) {
	s := w.set
	name := controllerName(l.kind, l.object.GetNamespace(), l.object.GetName())
	w.deleted[name] = true
	delete(w.failed, name)
	maps.DeleteFunc(w.failures, func(of string, _ int64) bool { return of == name || strings.HasPrefix(of, name+"/") })
	s.Deployments = slices.DeleteFunc(slices.Clone(s.Deployments), func(o *appsv1.Deployment) bool { return metav1.Object(o) == l.object })
	s.ReplicaSets = slices.DeleteFunc(slices.Clone(s.ReplicaSets), func(o *appsv1.ReplicaSet) bool { return metav1.Object(o) == l.object })
	s.ReplicationControllers = slices.DeleteFunc(slices.Clone(s.ReplicationControllers),
		func(o *v1.ReplicationController) bool { return metav1.Object(o) == l.object })
	s.StatefulSets = slices.DeleteFunc(slices.Clone(s.StatefulSets),
		func(o *appsv1.StatefulSet) bool { return metav1.Object(o) == l.object })
	s.DaemonSets = slices.DeleteFunc(slices.Clone(s.DaemonSets), func(o *appsv1.DaemonSet) bool { return metav1.Object(o) == l.object })
	s.Jobs = slices.DeleteFunc(slices.Clone(s.Jobs), func(o *batchv1.Job) bool { return metav1.Object(o) == l.object })
}

func controllerName(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// isWanted reports whether the pod's controller would make it again: it has not been deleted, it
// has as many replicas, if it is a StatefulSet, and it has not failed, if it is a Job.
func (w *workloads) isWanted(object *v1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil {
		return false
	}
	if name := controllerName(owner.Kind, object.Namespace, owner.Name); w.deleted[name] || w.failed[name] {
		return false
	}
	if owner.Kind != "StatefulSet" {
		return true
	}
	set, known := findByName(w.set.StatefulSets, Name{object.Namespace, owner.Name}).(*appsv1.StatefulSet)
	return !known || hasReplica(set, object.Name, int(*replicasOf(set.Spec.Replicas)))
}

// hasReplica reports whether a pod of that name is one of the set's replicas.
func hasReplica(set *appsv1.StatefulSet, name string, replicas int) bool {
	first := manifest.FirstOrdinal(set)
	ordinal := ordinalOf(set, name)
	return first <= ordinal && ordinal < first+replicas
}

// ordinalOf is the pod's number in the set, or -1 if its name is none of the set's.
func ordinalOf(set *appsv1.StatefulSet, name string) int {
	number, ok := strings.CutPrefix(name, set.Name+"-")
	ordinal, err := strconv.Atoi(number)
	if !ok || err != nil {
		return -1
	}
	return ordinal
}

// daemonSet says whether a DaemonSet exists. Of manifests without any, it is not known.
func (w *workloads) daemonSet(namespace, name string) disruption.Presence {
	switch {
	case findByName(w.set.DaemonSets, Name{namespace, name}) != nil:
		return disruption.There
	case w.set.Whole, len(w.set.DaemonSets) > 0, w.deleted[controllerName("DaemonSet", namespace, name)]:
		return disruption.Gone
	}
	return disruption.Unknown
}

// isOrphaned reports whether the pod's DaemonSet does not exist, so that nobody makes it again. One
// that was deleted meanwhile no longer wants its pods.
func (w *workloads) isOrphaned(p *v1.Pod, owner *metav1.OwnerReference) bool {
	return disruption.IsDaemonSet(owner) && w.daemonSet(p.Namespace, owner.Name) == disruption.Gone &&
		!w.deleted[controllerName(owner.Kind, p.Namespace, owner.Name)]
}

// makersOf returns the objects that own the workload's pods: itself, or a Deployment's ReplicaSets,
// the newest last.
func (w *workloads) makersOf(l *workload) []metav1.Object {
	if l.kind != "Deployment" {
		return []metav1.Object{l.object}
	}
	var own []*appsv1.ReplicaSet
	for _, r := range w.set.ReplicaSets {
		if ref := metav1.GetControllerOfNoCopy(r); ref != nil && ref.Kind == l.kind &&
			ref.Name == l.object.GetName() && r.Namespace == l.object.GetNamespace() {
			own = append(own, r)
		}
	}
	slices.SortStableFunc(own, func(a, b *appsv1.ReplicaSet) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	list := make([]metav1.Object, len(own))
	for i, r := range own {
		list[i] = r
	}
	return list
}

// deploymentOf returns the Deployment that a ReplicaSet belongs to, or nil.
func (w *workloads) deploymentOf(l *workload) *workload {
	if owner := metav1.GetControllerOfNoCopy(l.object); owner != nil && owner.Kind == "Deployment" {
		if d := findByName(w.set.Deployments, Name{l.object.GetNamespace(), owner.Name}); d != nil {
			return workloadOf(d)
		}
	}
	return nil
}

// podsOf returns the workload's pods in the order in which its controller removes them when scaling
// down.
func (c *controllers) podsOf(l *workload) []*pod {
	owners := map[string]bool{} // by name: in hand-written manifests, the UIDs may not agree
	for _, o := range c.workloads.makersOf(l) {
		owners[controllerName(workloadOf(o).kind, o.GetNamespace(), o.GetName())] = true
	}
	var list []*pod
	together := map[string]int{} // pods of the workload by node
	for _, p := range c.pods.named {
		if ref := metav1.GetControllerOfNoCopy(p.object); ref != nil &&
			owners[controllerName(ref.Kind, p.object.Namespace, ref.Name)] && p.Pod != nil && !p.Terminating {
			list = append(list, p)
			together[p.NodeName]++
		}
	}
	if l.kind == "StatefulSet" { // the highest ordinal first
		slices.SortFunc(list, func(a, b *pod) int { return cmp.Or(cmp.Compare(len(b.Name), len(a.Name)), cmp.Compare(b.Name, a.Name)) })
		return list
	}
	slices.SortFunc(list, func(a, b *pod) int { return c.compareWorth(a, b, together) })
	return list
}

// podOf creates a pod from a template, named as its controller would name it.
func (c *controllers) podOf(owner metav1.Object, kind string, template *v1.PodTemplateSpec) *v1.Pod {
	t := template.DeepCopy()
	gvk := appsv1.SchemeGroupVersion.WithKind(kind)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), Name: c.pods.generateName(owner.GetNamespace(), owner.GetName()+"-"),
			Labels: t.Labels, Annotations: t.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, gvk)},
		},
		Spec: t.Spec, Status: v1.PodStatus{Phase: v1.PodPending},
	}
}

// dropPod removes a pod, placed or pending, which does not come back unless its controller wants
// it.
func (c *controllers) dropPod(p *pod, cause Cause, detail string) {
	if cause != ByDeletion || !c.workloads.isWanted(p.object) {
		c.budgets.expectPods(p, -1)
	}
	if p.NodeName != "" {
		c.departPod(p, cause, detail)
		return
	}
	c.scheduler.withdrawPod(p)
	c.pods.forgetPod(p)
	c.report.addEvent(Event{Kind: "PodDeleted", Namespace: p.Namespace(), Name: p.Name, Message: detail})
}

// deleteNamed deletes a pod or a workload.
func (c *controllers) deleteNamed(op *Delete) (*Done, error) {
	kind, name, _ := strings.Cut(op.Object, "/")
	switch strings.ToLower(kind) {
	case "pod", "pods", "po":
		p := c.pods.named[Name{cmp.Or(op.Namespace, v1.NamespaceDefault), name}]
		switch {
		case p == nil:
			return nil, fmt.Errorf("there is no pod %s/%s", cmp.Or(op.Namespace, v1.NamespaceDefault), name)
		case rules.IsTerminal(p.object):
			return c.deleteEnded(p), nil
		case p.Pod == nil || p.Terminating:
			return &Done{Notes: []string{fmt.Sprintf("pod %s/%s is being deleted already", p.object.Namespace, p.object.Name)}}, nil
		}
		c.deletePod(p)
		return &Done{}, nil
	}
	l, err := c.workloads.findNamed(op.Object, op.Namespace)
	if err != nil {
		return nil, err
	}
	if c.workloads.deploymentOf(l) != nil {
		for _, p := range c.podsOf(l) { // its Deployment makes the ReplicaSet again, and that its pods
			c.deletePod(p)
		}
		return &Done{}, nil
	}
	pods, makers := c.podsOf(l), c.workloads.makersOf(l)
	c.workloads.forgetWorkload(l)
	for _, o := range makers {
		c.workloads.forgetWorkload(workloadOf(o))
	}
	for _, p := range pods {
		c.dropPod(p, ByScaling, op.Object)
	}
	return &Done{}, nil
}

// deleteEnded deletes a pod that has ended. Only controllers that keep one pod per ordinal or node
// make it again: all others have replaced it when it ended.
func (c *controllers) deleteEnded(p *pod) *Done {
	object := p.object
	if len(object.Finalizers) > 0 {
		return &Done{Notes: []string{fmt.Sprintf("pod %s/%s has ended (%s), and stays until its finalizers are removed: %s",
			object.Namespace, object.Name, object.Status.Phase, strings.Join(object.Finalizers, ", "))}}
	}

	p.gone = true
	c.pods.forgetPod(p)
	c.report.addEvent(Event{Kind: "PodDeleted", Namespace: object.Namespace, Name: object.Name})
	done := &Done{Notes: []string{fmt.Sprintf("pod %s/%s has ended (%s): deleting it frees no room", object.Namespace,
		object.Name, object.Status.Phase)}}
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil || !c.workloads.isWanted(object) {
		return done
	}

	id := Name{object.Namespace, owner.Name}
	m := c.nodes.named[manifest.DaemonNode(object)]
	if owner.Kind == "StatefulSet" {
		c.makeAgain(object)
	} else if set, ok := findByName(c.workloads.set.DaemonSets, id).(*appsv1.DaemonSet); ok &&
		owner.Kind == "DaemonSet" && m != nil && c.runsDaemon(object, m.object) && !c.hasDaemon(m, set) {
		c.makeDaemon(set, m.object.Name)
	}

	return done
}

// deletePod deletes a pod, which its controller makes again. A Job counts it as failed, even one
// that was pending: its finalizer keeps it until then.
func (c *controllers) deletePod(p *pod) {
	c.dropPod(p, ByDeletion, "")
	if p.NodeName != "" || !c.workloads.isWanted(p.object) {
		return
	}
	d := &Departure{Cause: ByDeletion, object: p.object}
	switch failed := c.failsJob(d, metav1.GetControllerOfNoCopy(p.object)); {
	case !failed:
		c.makeAgain(p.object)
	case d.Fate == IndexFails:
		c.goOn(d)
	}
}
