package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// workloads are the objects of the controllers that make pods. What these controllers do is
// in controllers; this type knows what they want.
//
// An owner that was deleted is remembered, because its pods may outlive it and must not be
// made again. One that is not known at all, because its kind was not read, is taken to want
// its pods.
type workloads struct {
	scheduler *scheduler           // has them, in its api
	set       *manifest.Set        // what the world was made from, with its workloads as they were
	deleted   map[rules.Owner]bool // those that were deleted
	// renewed are those whose template was changed: pods of the old one may be left.
	renewed map[rules.Owner]bool
	// failures counts the pods that Jobs and their indexes have lost since the beginning, and
	// failed has the Jobs that have failed because of it. Both forget a Job that is deleted.
	failures map[rules.Owner]*failures
	failed   map[rules.Owner]bool
	// daemons are the DaemonSets, which every node is asked about; listed is set while the
	// list is current. It is made anew after a workload has changed.
	daemons []*appsv1.DaemonSet
	listed  bool
}

// table has the workloads that exist.
func (w *workloads) table() *workload.Table { return w.scheduler.api.Workloads() }

// findNamed finds a workload by TYPE/NAME as kubectl writes it, short names included. An
// empty namespace means default.
func (w *workloads) findNamed(ref, namespace string) (*workload.Workload, error) {
	word, name, ok := strings.Cut(ref, "/")
	if !ok {
		return nil, fmt.Errorf("%q: must be TYPE/NAME, as deployment/web", ref)
	}
	kind, known := workload.KindNamed(word)
	if !known {
		return nil, fmt.Errorf("%q: the type must be pod, deployment, replicaset, replicationcontroller, statefulset, "+
			"daemonset or job", ref)
	}
	namespace = cmp.Or(namespace, v1.NamespaceDefault)
	l := w.table().Named(kind, namespace, name)
	if l == nil {
		return nil, fmt.Errorf("there is no %s %s/%s", strings.ToLower(word), namespace, name)
	}
	return l, nil
}

// keepWorkload adds a workload, or replaces the one of the same name. One that was deleted
// and is created again wants its pods again.
func (w *workloads) keepWorkload(object metav1.Object) {
	w.scheduler.api.Follow(object, false)
	w.listed = false
	delete(w.deleted, workload.Of(object).Owner())
}

// forgetWorkload removes a workload. Its pods are not made again from then on, and a Job that is
// made anew under its name begins without failures.
func (w *workloads) forgetWorkload(l *workload.Workload) {
	owner := l.Owner()
	w.scheduler.api.Follow(l.Object, true)
	w.listed = false
	w.deleted[owner] = true
	delete(w.failed, owner)
	delete(w.failures, owner)
}

// isWanted reports whether the pod's controller would make it again: it has not been deleted, nor
// begun to be, it has as many replicas, if it is a StatefulSet, and it has not failed, if it is a
// Job. For other kinds, the number of replicas is the caller's business: a pod that leaves is
// replaced, so the number stays.
func (w *workloads) isWanted(object *v1.Pod) bool {
	owner := rules.OwnerOf(object)
	if owner == (rules.Owner{}) || w.deleted[owner] || w.failed[owner] {
		return false
	}
	l := w.table().By(owner)
	if l == nil {
		return true
	}
	if l.Object.GetDeletionTimestamp() != nil {
		return false
	}
	set, ordered := l.Object.(*appsv1.StatefulSet)
	return !ordered || workload.HasReplica(set, object.Name, int(*l.Replicas))
}

// daemonSets lists the DaemonSets, those that are being deleted included. The list must not
// be changed.
func (w *workloads) daemonSets() []*appsv1.DaemonSet {
	if w.listed {
		return w.daemons
	}
	w.daemons, w.listed = nil, true
	for l := range w.table().All() {
		if set, ok := l.Object.(*appsv1.DaemonSet); ok {
			w.daemons = append(w.daemons, set)
		}
	}
	return w.daemons
}

// daemonSet says whether a DaemonSet exists. Of manifests without any, it is not known: they
// may be a part of a cluster. A whole cluster (set.Whole) without any has none.
func (w *workloads) daemonSet(namespace, name string) disruption.Presence {
	switch {
	case w.table().Named(rules.DaemonSet, namespace, name) != nil:
		return disruption.There
	case w.set.Whole, len(w.set.DaemonSets) > 0, len(w.daemonSets()) > 0:
		return disruption.Gone
	}
	return disruption.Unknown
}

// isOrphaned reports whether the pod's DaemonSet does not exist, so that nobody makes it again. One
// that was deleted meanwhile no longer wants its pods.
func (w *workloads) isOrphaned(p *v1.Pod, controller *metav1.OwnerReference) bool {
	return rules.KindOf(controller) == rules.DaemonSet && w.daemonSet(p.Namespace, controller.Name) == disruption.Gone &&
		!w.deleted[rules.OwnerOf(p)]
}

// podsOf returns the workload's pods in the order in which its controller removes them when
// scaling down. Pods that have ended or are being deleted are not among them.
func (c *controllers) podsOf(l *workload.Workload) []*pod {
	list := c.podsBy(c.workloads.table().MakersOf(l))
	// Longer names first: of web-9 and web-10, the second has the higher ordinal.
	if l.Kind.GroupKind() == rules.StatefulSet { // the highest ordinal first
		slices.SortFunc(list, func(a, b *pod) int { return cmp.Or(cmp.Compare(len(b.Name), len(a.Name)), cmp.Compare(b.Name, a.Name)) })
		return list
	}

	related := list
	if top := c.workloads.table().DeploymentOf(l); top != nil { // pods of its other ReplicaSets count for crowding, too
		related = c.podsBy(c.workloads.table().MakersOf(top))
	}
	together := map[string]int{}
	for _, p := range related {
		together[p.NodeName]++
	}

	replicas, now := map[*pod]*workload.Replica{}, c.clock.time()
	for _, p := range list {
		replicas[p] = p.asReplica()
	}
	slices.SortFunc(list, func(a, b *pod) int { return workload.CompareSurplus(replicas[a], replicas[b], together, now) })
	return list
}

// podsBy returns the pods of controllers that count for these: they have not ended, and are not
// being deleted.
func (c *controllers) podsBy(owners []*workload.Workload) (list []*pod) {
	for _, owner := range owners {
		for _, object := range c.scheduler.api.PodsOf(owner.Owner()) {
			if p := c.pods.named[Name{object.Namespace, object.Name}]; p.Pod != nil && !p.Terminating {
				list = append(list, p)
			}
		}
	}
	return list
}

// podOf creates a pod from a workload's template, named as its controller would name it. It
// is not added.
func (c *controllers) podOf(l *workload.Workload) *v1.Pod {
	p := l.NewPod()
	p.Name = c.pods.generateName(p.Namespace, l.Object.GetName()+"-")
	return p
}

// dropPod removes a pod, placed or pending, which does not come back unless its controller
// wants it.
func (c *controllers) dropPod(p *pod, cause Cause, detail string) {
	// Unless its controller makes it again, budgets expect one pod less.
	if cause != ByDeletion || !c.workloads.isWanted(p.object) {
		c.budgets.expectPods(p, -1)
	}
	if p.NodeName != "" {
		c.departPod(p, cause, detail)
		return
	}
	c.scheduler.withdrawPod(p)
	c.pods.forgetPod(p)
	c.budgets.podGone(p.Namespace(), p.Class.Labels, p.Class.Controller)
	c.report.addEvent(Event{Kind: "PodDeleted", Namespace: p.Namespace(), Name: p.Name, Message: detail})
}

// deleteNamed deletes a pod or a workload, by TYPE/NAME. The pods of a workload go with it,
// as with kubectl delete, which cascades. An empty namespace means default.
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
		case isMirror(p.object):
			return &Done{Notes: []string{fmt.Sprintf("pod %s/%s is a static pod of %s, which runs on: its kubelet shows it again at once",
				p.object.Namespace, p.object.Name, p.NodeName)}}, nil
		}
		c.deletePod(p)
		return &Done{}, nil
	}
	l, err := c.workloads.findNamed(op.Object, op.Namespace)
	if err != nil {
		return nil, err
	}
	if c.workloads.table().DeploymentOf(l) != nil {
		for _, p := range c.podsOf(l) { // its Deployment makes the ReplicaSet again, and that its pods
			c.deletePod(p)
		}
		return &Done{}, nil
	}
	pods, makers := c.podsOf(l), c.workloads.table().MakersOf(l)
	c.workloads.forgetWorkload(l)
	c.endWaiting(l)
	for _, maker := range makers {
		c.workloads.forgetWorkload(maker)
	}
	for _, p := range pods {
		c.dropPod(p, ByScaling, op.Object)
	}
	return &Done{}, nil
}

// isMirror reports whether a pod only shows a static pod of its node, which deleting it does
// not end.
func isMirror(object *v1.Pod) bool {
	_, mirror := object.Annotations[v1.MirrorPodAnnotationKey]
	return mirror
}

// deleteEnded deletes a pod that has ended. Only controllers that keep one pod per ordinal or
// node make it again: all others have replaced it when it ended. The result notes that no
// room is freed.
func (c *controllers) deleteEnded(p *pod) *Done {
	object := p.object
	if len(object.Finalizers) > 0 {
		return &Done{Notes: []string{fmt.Sprintf("pod %s/%s has ended (%s), and stays until its finalizers are removed: %s",
			object.Namespace, object.Name, object.Status.Phase, strings.Join(object.Finalizers, ", "))}}
	}

	p.gone = true
	c.pods.forgetPod(p)
	c.budgets.podGone(object.Namespace, labels.Set(object.Labels), metav1.GetControllerOfNoCopy(object))
	c.report.addEvent(Event{Kind: "PodDeleted", Namespace: object.Namespace, Name: object.Name})
	done := &Done{Notes: []string{fmt.Sprintf("pod %s/%s has ended (%s): deleting it frees no room", object.Namespace,
		object.Name, object.Status.Phase)}}
	if !c.workloads.isWanted(object) {
		return done
	}

	m := c.nodes.named[workload.DaemonNode(object)]
	if kind := rules.ControllerKind(object); kind == rules.StatefulSet {
		c.makeReturn(&Departure{Namespace: object.Namespace, Name: object.Name, Cause: ByDeletion, object: object}, object)
	} else if l := c.workloads.table().ControllerOf(object); l != nil && kind == rules.DaemonSet &&
		m != nil && c.runsDaemon(object, m.object) {
		if set := l.Object.(*appsv1.DaemonSet); !c.hasDaemon(m, set) {
			c.makeDaemon(set, m.object.Name)
		}
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
	d := &Departure{Namespace: p.Namespace(), Name: p.Name, Cause: ByDeletion, object: p.object}
	switch failed := c.failsJob(d); {
	case !failed:
		c.makeReturn(d, p.object)
	case d.Fate == IndexFails:
		c.goOn(d)
	}
}
