// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// cluster is the observed state of the API.
//
// It is updated only by the events passed to its owner, so it includes a write only after the watch
// event of the write. Plans run on other goroutines with forks of the cluster.
type cluster struct {
	*world.World
	unreserved bool // no scheduler reserves room for successors
}

// newCluster returns an empty cluster.
func newCluster() *cluster { return &cluster{World: world.Open(nil)} }

// covered iterates over the non-terminal pods selected by a budget.
func (c *cluster) covered(b *policyv1.PodDisruptionBudget) iter.Seq[*v1.Pod] {
	return func(yield func(*v1.Pod) bool) {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			return
		}
		for p := range world.InNamespace[*v1.Pod](c.World, b.Namespace) {
			if !rules.IsTerminal(p) && selector.Matches(labels.Set(p.Labels)) && !yield(p) {
				return
			}
		}
	}
}

// see applies the creation, update or deletion of an object.
func (c *cluster) see(event Event) {
	switch e := event.(type) {
	case Seen:
		c.Put(e.Object)
	case Gone:
		c.Delete(e.Object)
	case NoReservation:
		c.unreserved = true
	}
}

// podsOf returns the UIDs of a controller's pods.
func (c *cluster) podsOf(owner rules.Owner) map[types.UID]bool {
	pods := map[types.UID]bool{}
	for _, p := range c.PodsOf(owner) {
		pods[p.UID] = true
	}
	return pods
}

// opened returns a fork for planning moves. In the fork, nodes closed for moves in progress do not
// have Berth's taint, because the plan closes nodes itself. Emptied nodes keep the taint.
func (c *cluster) opened() *world.World {
	w, holding := c.Fork(), c.holding()
	for n := range world.All[*v1.Node](w) {
		if taintOf(n) == valueRoom || taintOf(n) == valueEmpty && holding[n.Name] {
			n = n.DeepCopy()
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == rebalance.EmptyingTaint })
			w.Put(n)
		}
	}
	return w
}

// pod returns the pod with the given name and UID, or nil. The name may already belong to a
// replacement, as is usual for a StatefulSet.
func (c *cluster) pod(namespace, name string, uid types.UID) *v1.Pod {
	p, there := world.Get[*v1.Pod](c.World, namespace, name)
	if !there || p.UID != uid {
		return nil
	}
	return p
}

// scaled returns the object scaled by a surge, or nil if it is missing or its name now belongs to a
// different object.
func (c *cluster) scaled(s rebalance.Scaled) metav1.Object {
	l := c.Workloads().OwnedBy(rules.Owner{Namespace: s.Namespace, UID: s.UID})
	if l == nil || l.Kind.Kind != s.Kind || l.Object.GetName() != s.Name {
		return nil
	}
	return l.Object
}

// surging reports whether a surge has added a replica to an object.
func (c *cluster) surging(s rebalance.Scaled) bool {
	object := c.scaled(s)
	return object != nil && object.GetLabels()[rebalance.SurgeLabel] != ""
}

// split reports whether the controller that scales a ReplicaSet, such as an Argo Rollout, also has
// a second ReplicaSet with replicas. Then a rollout is in progress, and an additional replica could
// be created by either ReplicaSet.
func (c *cluster) split(object metav1.Object) bool {
	through := rebalance.ThroughOf(object)
	if _, set := object.(*appsv1.ReplicaSet); !set || through == nil {
		return false
	}
	return rules.Any(world.InNamespace[*appsv1.ReplicaSet](c.World, object.GetNamespace()), func(other *appsv1.ReplicaSet) bool {
		return other.UID != object.GetUID() && replicasOf(other) > 0 &&
			metav1.IsControlledBy(other, &metav1.ObjectMeta{UID: through.UID})
	})
}

// notMade returns the reason a ReplicaSet's controller could not create a pod, or "". The
// ReplicaSet reports rejections by a quota or an admission webhook in its ReplicaFailure condition.
// owner is KIND/NAME.
func (c *cluster) notMade(namespace, owner string) string {
	_, name, _ := strings.Cut(owner, "/")
	rs, there := world.Get[*appsv1.ReplicaSet](c.World, namespace, name)
	if !there {
		return ""
	}
	for _, condition := range rs.Status.Conditions {
		if condition.Type == appsv1.ReplicaSetReplicaFailure && condition.Status == v1.ConditionTrue {
			return condition.Message
		}
	}
	return ""
}

// whole reports whether all pods of a workload are running and ready. Only then does its controller
// remove the pod with the lowest deletion cost first: kube-controller-manager removes pods that are
// not running or not ready before comparing costs.
func (c *cluster) whole(w rules.Owner) bool {
	return !slices.ContainsFunc(c.PodsOf(w), func(p *v1.Pod) bool {
		return p.DeletionTimestamp == nil && !rules.IsTerminal(p) && (!rules.HasReadyCondition(p) || p.Status.Phase != v1.PodRunning)
	})
}

// forbids returns a message if scaling back after a surge would leave a budget of the victims with
// too few healthy pods, or "".
//
// It counts pods instead of reading the budget's status, because the status may not yet include the
// pod added by the surge.
func (c *cluster) forbids(victims []*v1.Pod) string {
	for b := range world.InNamespace[*policyv1.PodDisruptionBudget](c.World, victims[0].Namespace) {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		covers := int32(rules.Count(slices.Values(victims), func(v *v1.Pod) bool {
			return err == nil && !rules.IsTerminal(v) && selector.Matches(labels.Set(v.Labels))
		}))
		if covers == 0 { // covered scans all pods of the namespace
			continue
		}
		var count disruption.Count
		for p := range c.covered(b) {
			count.AddPod(p, rules.HasReadyCondition(p))
		}
		s := count.Status(b, c.Workloads())
		// Scaling back removes as many expected pods as healthy pods.
		desired, healthy := disruption.Desired(&b.Spec, int(s.ExpectedPods-covers)), s.CurrentHealthy-covers
		if healthy < desired {
			return fmt.Sprintf("the disruption budget %s needs %d healthy pods, and would have %d", b.Name, desired, healthy)
		}
	}
	return ""
}

// node returns the node with the given name, or nil.
func (c *cluster) node(name string) *v1.Node {
	n, _ := world.Get[*v1.Node](c.World, "", name)
	return n
}

// holdsPods reports whether pods deleted from a node stay on it.
func (c *cluster) holdsPods(name string) bool {
	n := c.node(name)
	return n != nil && disruption.HoldsPods(n)
}

// nodes returns all nodes sorted by name, so that requests are issued in a stable order.
func (c *cluster) nodes() []*v1.Node {
	return slices.Collect(world.All[*v1.Node](c.World))
}

// holding returns the nodes with a pod that can run elsewhere. Mirror pods, DaemonSet pods and
// terminal pods do not count: a node with only such pods is empty.
func (c *cluster) holding() map[string]bool {
	nodes := map[string]bool{}
	for p := range world.All[*v1.Pod](c.World) {
		if p.Spec.NodeName == "" || rules.IsTerminal(p) || p.Annotations[v1.MirrorPodAnnotationKey] != "" {
			continue
		}
		if kind := rules.ControllerKind(p); kind != rules.DaemonSet && kind != rules.Node {
			nodes[p.Spec.NodeName] = true
		}
	}
	return nodes
}

// satisfied reports whether a workload has all its desired pods without the victim and will not
// create a successor. It returns false for unknown kinds and for kinds without a replica count. A
// false negative only causes a wait for a successor until the time limit.
func (c *cluster) satisfied(p *departure) bool {
	l := c.Workloads().OwnedBy(p.owner)
	return l != nil && l.Replicas != nil &&
		c.live(p.owner) >= int(*l.Replicas)
}

// live counts the pods of a controller that are neither terminating nor terminal.
func (c *cluster) live(owner rules.Owner) int {
	return len(slices.DeleteFunc(c.PodsOf(owner), func(p *v1.Pod) bool { return p.DeletionTimestamp != nil || rules.IsTerminal(p) }))
}

// successor returns the most likely replacement of a pod: preferably a ready pod on the planned
// node (to), otherwise a scheduled pod, otherwise a pending pod. isNew excludes pods that already
// existed and successors of other pods.
func (c *cluster) successor(of rules.Predecessor, to string, isNew func(p *v1.Pod) bool) *v1.Pod {
	list := slices.DeleteFunc(c.PodsOf(rules.Owner{Namespace: of.Namespace, UID: of.Owner}), func(p *v1.Pod) bool {
		return !of.MayBeSucceededBy(p) || !isNew(p) || p.DeletionTimestamp != nil || rules.IsTerminal(p)
	})
	if len(list) == 0 {
		return nil
	}
	rank := func(p *v1.Pod) int {
		switch {
		case p.Spec.NodeName == "":
			return 2
		case p.Spec.NodeName == to && rules.HasReadyCondition(p):
			return 0
		}
		return 1
	}

	return slices.MinFunc(list, func(a, b *v1.Pod) int {
		// Among pods of equal rank, the oldest pod most likely replaces this victim. The UID makes
		// the choice deterministic.
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
}
