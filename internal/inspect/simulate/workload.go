// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// workloads holds the objects of controllers that create pods. It determines the wanted pods; type
// controllers implements the controllers' actions.
//
// A deleted owner is remembered, because its pods may outlive it and must not be recreated. An
// unknown owner, of a kind that was not read, is assumed to want its pods.
type workloads struct {
	scheduler *scheduler           // its api holds the workloads
	set       *manifest.Set        // the world's initial manifests, with the original workloads
	deleted   map[rules.Owner]bool // deleted owners
	// renewed holds the owners with a changed template. Pods of the old template may remain.
	renewed map[rules.Owner]bool
	// daemons caches the DaemonSets, consulted for every node; listed is set while the cache is
	// current. It is rebuilt after a workload has changed.
	daemons []*appsv1.DaemonSet
	listed  bool
}

// table returns the existing workloads.
func (w *workloads) table() *workload.Table { return w.scheduler.api.Workloads() }

// findNamed finds a workload by TYPE/NAME, like kubectl, including short names. An empty namespace
// means default.
func (w *workloads) findNamed(ref, namespace string) (*workload.Workload, error) {
	word, name, ok := strings.Cut(ref, "/")
	if !ok {
		return nil, fmt.Errorf("%q: must be TYPE/NAME, such as deployment/web", ref)
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

// keepWorkload adds a workload, or replaces the one of the same name. A recreated workload wants
// its pods again.
func (w *workloads) keepWorkload(object metav1.Object) {
	w.scheduler.follow(object, false)
	w.listed = false
	delete(w.deleted, workload.Of(object).Owner())
}

// forgetWorkload removes a workload. Its pods are not recreated from then on.
func (w *workloads) forgetWorkload(l *workload.Workload) {
	owner := l.Owner()
	w.scheduler.follow(l.Object, true)
	w.listed = false
	w.deleted[owner] = true
}

// isWanted reports whether the pod's controller would recreate it: the controller is neither
// deleted nor being deleted, a StatefulSet's replicas include the pod's ordinal, and a Job is not
// finished. For other kinds, the caller tracks the number of replicas: a departed pod is replaced,
// so the number stays the same.
func (w *workloads) isWanted(object *v1.Pod) bool {
	owner := rules.OwnerOf(object)
	if owner == (rules.Owner{}) || w.deleted[owner] {
		return false
	}
	l := w.table().OwnedBy(owner)
	if l == nil {
		return true
	}
	if l.Object.GetDeletionTimestamp() != nil {
		return false
	}
	switch o := l.Object.(type) {
	case *batchv1.Job:
		return !workload.IsFinished(o)
	case *appsv1.StatefulSet:
		return workload.HasReplica(o, object.Name, int(*l.Replicas))
	}
	return true
}

// daemonSets lists the DaemonSets, including those being deleted. Callers must not modify the list.
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

// daemonSet reports whether a DaemonSet exists. If it is missing, the result is Gone only for a
// whole cluster (set.Whole) or manifests with other DaemonSets. Manifests without DaemonSets may be
// a part of a cluster, so the result is Unknown.
func (w *workloads) daemonSet(namespace, name string) disruption.Presence {
	switch {
	case w.table().Named(rules.DaemonSet, namespace, name) != nil:
		return disruption.There
	case w.set.Whole, len(w.set.DaemonSets) > 0, len(w.daemonSets()) > 0:
		return disruption.Gone
	}
	return disruption.Unknown
}

// isOrphaned reports whether the pod's DaemonSet does not exist, so the pod is not recreated. The
// pods of a DaemonSet deleted in this world do not count: they are no longer wanted; see isWanted.
func (w *workloads) isOrphaned(p *v1.Pod, controller *metav1.OwnerReference) bool {
	return rules.KindOf(controller) == rules.DaemonSet && w.daemonSet(p.Namespace, controller.Name) == disruption.Gone &&
		!w.deleted[rules.OwnerOf(p)]
}

// podsOf returns the workload's pods in the order of removal when scaling down, without ended and
// terminating pods.
func (c *controllers) podsOf(l *workload.Workload) []*pod {
	list := c.podsBy(c.workloads.table().MakersOf(l))
	// Longer names first: of web-9 and web-10, the second has the higher ordinal.
	if l.Kind.GroupKind() == rules.StatefulSet { // the highest ordinal first
		slices.SortFunc(list, func(a, b *pod) int {
			return cmp.Or(cmp.Compare(len(b.Name()), len(a.Name())), cmp.Compare(b.Name(), a.Name()))
		})
		return list
	}

	related := list
	if top := c.workloads.table().DeploymentOf(l); top != nil { // pods of its other ReplicaSets also count for crowding
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

// podsBy returns the pods counted by these controllers: pods neither ended nor being deleted.
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

// podOf creates a pod from a workload's template, named like its controller would. It does not add
// the pod.
func (c *controllers) podOf(l *workload.Workload) *v1.Pod {
	p := l.NewPod()
	p.Name = c.pods.generateName(p.Namespace, l.Object.GetName()+"-")
	return p
}

// dropPod removes a placed or pending pod, which returns only if its controller wants it.
func (c *controllers) dropPod(p *pod, cause Cause, detail string) {
	// Unless the controller recreates the pod, budgets expect one pod less.
	if cause != ByDeletion || !c.workloads.isWanted(p.object) {
		c.budgets.expectPods(p, -1)
	}
	if p.NodeName != "" {
		c.departPod(p, cause, detail)
		return
	}
	c.scheduler.withdrawPod(p)
	c.pods.forgetPod(p)
	c.budgets.podGone(p.Namespace(), p.Class.Labels, p.Class.Controller.Reference())
	c.report.addEvent(Event{Kind: "PodDeleted", Namespace: p.Namespace(), Name: p.Name(), Message: detail})
}

// deleteNamed deletes a pod or a workload by TYPE/NAME. Like kubectl delete, it deletes a
// workload's pods as well. An empty namespace means default.
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
			return &Done{Notes: []string{fmt.Sprintf("pod %s/%s is already being deleted", p.object.Namespace, p.object.Name)}}, nil
		case isMirror(p.object):
			return &Done{Notes: []string{fmt.Sprintf("pod %s/%s is a static pod of %s, which keeps running: its kubelet recreates the "+
				"mirror pod immediately",
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
		for _, p := range c.podsOf(l) { // its Deployment recreates the ReplicaSet, which recreates the pods
			c.deletePod(p)
		}
		return &Done{}, nil
	}
	pods, makers := c.podsOf(l), c.workloads.table().MakersOf(l)
	c.workloads.forgetWorkload(l)
	c.retries.end(l.Owner())
	for name, d := range c.waiting { // pods that would be recreated
		if rules.OwnerOf(d.object) == l.Owner() {
			d.Fate = Ends
			delete(c.waiting, name)
		}
	}
	for _, maker := range makers {
		c.workloads.forgetWorkload(maker)
	}
	for _, p := range pods {
		c.dropPod(p, ByScaling, op.Object)
	}
	return &Done{}, nil
}

// isMirror reports whether a pod is the mirror of a static pod, which survives deletion of the
// mirror.
func isMirror(object *v1.Pod) bool {
	_, mirror := object.Annotations[v1.MirrorPodAnnotationKey]
	return mirror
}

// deleteEnded deletes an ended pod. Only controllers that keep one pod per ordinal or node recreate
// it; all other controllers replaced it when it ended. The result notes that the deletion frees no
// room.
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
		c.makeReturn(&Departure{Namespace: object.Namespace, Name: object.Name, Cause: ByDeletion, object: object})
	} else if l := c.workloads.table().ControllerOf(object); l != nil && kind == rules.DaemonSet &&
		m != nil && c.runsDaemon(object, m.object) {
		if set := l.Object.(*appsv1.DaemonSet); !c.hasDaemon(m, set) {
			c.makeDaemon(set, m.object.Name)
		}
	}

	return done
}

// deletePod deletes a pod, which its controller recreates. A Job counts even a pending pod as
// failed, because the Job's finalizer keeps the pod until it is counted.
func (c *controllers) deletePod(p *pod) {
	c.dropPod(p, ByDeletion, "")
	if p.NodeName != "" || !c.workloads.isWanted(p.object) {
		return
	}
	c.endPod(&Departure{Namespace: p.Namespace(), Name: p.Name(), Cause: ByDeletion, object: p.object})
}
