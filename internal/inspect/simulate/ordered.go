// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Simulation of the StatefulSet controller with podManagementPolicy OrderedReady, the default: it
// creates a pod only when all pods before it are running and ready, and removes a pod only when all
// remaining pods are running and ready.
//
//	db-0 pending, db-1 and db-2 evicted    -> neither is recreated until db-0 is ready
//	db-0 pending, scaled from 3 to 2       -> db-2 stays until db-0 is ready

// orderedSet returns the pod's StatefulSet if it creates its pods in order, or nil.
func (c *controllers) orderedSet(object *v1.Pod) *appsv1.StatefulSet {
	if l := c.workloads.table().ControllerOf(object); l != nil {
		if set, ok := l.Object.(*appsv1.StatefulSet); ok && workload.InOrder(set) {
			return set
		}
	}
	return nil
}

// proceed takes the next steps of an ordered set's controller: it creates the first missing pod, or
// removes surplus pods, unless an unready pod blocks it. It is called whenever one of the set's
// pods is added, removed, or becomes ready. It is a no-op for a set being deleted.
func (c *controllers) proceed(set *appsv1.StatefulSet) {
	if set.DeletionTimestamp != nil {
		return
	}
	first, l := workload.FirstOrdinal(set), workload.Of(set)
	for ordinal := first; ordinal < first+int(*l.Replicas) && !c.allowed.mustStop(); ordinal++ {
		p := c.pods.named[Name{set.Namespace, workload.OrdinalName(set, ordinal)}]
		switch {
		case p == nil || isReplaceable(p):
			c.makeOrdinal(set, ordinal)
			return
		case !isUp(p):
			return
		}
	}

	surplus := slices.DeleteFunc(c.podsOf(l), func(p *pod) bool { return workload.HasReplica(set, p.Name(), int(*l.Replicas)) })
	for i, p := range surplus {
		// Remove the highest first; remove an unready pod only if no lower pod is unready as well.
		if !isUp(p) && slices.ContainsFunc(surplus[i+1:], func(lower *pod) bool { return !isUp(lower) }) {
			return
		}
		c.dropPod(p, ByScaling, l.Ref())
	}
}

// isUp reports whether the controller considers the pod running and ready.
func isUp(p *pod) bool {
	return p.Pod != nil && p.NodeName != "" && !p.Terminating && !p.unready
}

// isReplaceable reports whether the pod has ended, so its controller deletes it and recreates it
// under its name.
func isReplaceable(p *pod) bool {
	return p.Pod == nil && rules.IsTerminal(p.object) && len(p.object.Finalizers) == 0
}

// makeOrdinal creates the pod of an ordinal, and replaces an ended pod of that name. It does
// nothing while a pod stuck on an unresponsive node holds the name.
func (c *controllers) makeOrdinal(set *appsv1.StatefulSet, ordinal int) {
	p, claims := workload.StatefulPod(set, ordinal)
	name := Name{p.Namespace, p.Name}
	if ended := c.pods.named[name]; ended != nil {
		c.pods.forgetPod(ended)
	}
	for _, list := range c.stuck {
		if slices.ContainsFunc(list, func(p *pod) bool { return name == nameOf(p) }) {
			return
		}
	}

	if d := c.waiting[name]; d != nil {
		delete(c.waiting, name)
		c.replace(d)
		return
	}
	if c.claims.addClaims(claims) {
		c.claims.identifyClaims()
	}
	c.pods.createPod(p, false)
}

// podLanded starts a pod that got a node, and lets its OrderedReady StatefulSet proceed.
func (c *controllers) podLanded(p *pod) {
	c.pods.podLanded(p)
	if !c.pods.lasting { // the object may have been released
		return
	}
	if set := c.orderedSet(p.object); set != nil {
		c.proceed(set)
	}
}

// readiness is the state of a pod on its node, as reported by kubelets and node health.
type readiness struct {
	// unready means that the pod counts in budgets.unready, and not as healthy in its budgets.
	unready bool
	// marked is the time at which node health marked the ready pod as not ready; zero for other
	// pods.
	marked time.Time
	// starved means that the kubelet is evicting the pod and its grace period is running.
	starved bool
	// turnedAway means that the kubelet did not admit the pod; its containers never run.
	turnedAway bool
}

// markUnready marks the pods of a node as not ready on behalf of node health: their budgets have
// fewer healthy pods and allow fewer disruptions.
func (s *pods) markUnready(node string) {
	for _, p := range s.podsOn(node) {
		if !p.unready && !p.Terminating {
			p.unready, p.marked = true, s.clock.time()
			s.budgets.unready[p.Class]++
			s.budgets.podLeft(p.Pod)
			s.scheduler.keepObject(p, p.object)
		}
	}
}

// unmarkUnready makes the kubelet of a recovered node report its pods as ready again. Pods unready
// before the node failed stay unready.
func (s *pods) unmarkUnready(node string) {
	for _, p := range s.podsOn(node) {
		if p.unready && !p.marked.IsZero() && !p.Terminating {
			p.unready, p.marked = false, time.Time{}
			s.budgets.unready[p.Class]--
			s.budgets.podJoined(p.Pod)
			s.scheduler.keepObject(p, p.object)
		}
	}
}

// unreadySince returns the time since which a pod is not ready. It returns zero if the pod is ready
// or the time is unknown.
func (p *pod) unreadySince() (since time.Time) {
	if !p.unready || !p.marked.IsZero() {
		return p.marked
	}
	if c := rules.PodCondition(&p.object.Status, v1.PodReady); c != nil {
		since = c.LastTransitionTime.Time
	}
	return since
}

// podsOn lists the pods on a node, including terminating ones, by name. It is empty for an unknown
// node.
func (s *pods) podsOn(name string) []*pod {
	n := s.scheduler.c.Node(name)
	if n == nil {
		return nil
	}
	var list []*pod
	for _, p := range n.Pods {
		if known := s.placed[p.UID()]; known != nil {
			list = append(list, known)
		}
	}
	slices.SortFunc(list, compareNames)
	return list
}

// endedOn lists the ended pods on a node by name. The core does not track them, because they take
// no room.
func (s *pods) endedOn(node string) []*pod {
	list := slices.DeleteFunc(slices.Collect(maps.Keys(s.ended)), func(p *pod) bool { return p.object.Spec.NodeName != node })
	slices.SortFunc(list, compareNames)
	return list
}
