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

// cluster is the state of the API as far as it has been seen.
//
// It is written by the events that the owner is shown, and by nothing else: what was requested
// counts once it is seen. Plans, which run on other goroutines, get forks of it.
type cluster struct{ *world.World }

// newCluster returns a cluster of which nothing has been seen.
func newCluster() *cluster { return &cluster{world.Open(nil)} }

// covered are the pods that a budget covers and that have not ended.
func (c *cluster) covered(b *policyv1.PodDisruptionBudget) iter.Seq[*v1.Pod] {
	return func(yield func(*v1.Pod) bool) {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			return
		}
		for p := range world.In[*v1.Pod](c.World, b.Namespace) {
			if !rules.IsTerminal(p) && selector.Matches(labels.Set(p.Labels)) && !yield(p) {
				return
			}
		}
	}
}

// see takes up an object that is new, has changed, or is gone.
func (c *cluster) see(event Event) {
	switch e := event.(type) {
	case Seen:
		c.Put(e.Object)
	case Gone:
		c.Delete(e.Object)
	}
}

// podsOf returns which pods a controller has.
func (c *cluster) podsOf(owner rules.Owner) map[types.UID]bool {
	pods := map[types.UID]bool{}
	for _, p := range c.PodsOf(owner) {
		pods[p.UID] = true
	}
	return pods
}

// opened returns a fork for a plan of moves. Nodes that are closed only during moves are open in
// it, because the plan closes them itself. Those that are empty stay closed.
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

// pod returns the pod of that name if it is still the same one. nil also means that another one has
// its name by now, as that of a StatefulSet soon has.
func (c *cluster) pod(namespace, name string, uid types.UID) *v1.Pod {
	p, there := world.Get[*v1.Pod](c.World, namespace, name)
	if !there || p.UID != uid {
		return nil
	}
	return p
}

// scaled returns what a surge scales, if it is still the same one. nil if it is not there, or
// another one has its name.
func (c *cluster) scaled(s rebalance.Scaled) metav1.Object {
	l := c.Workloads().By(rules.Owner{Namespace: s.Namespace, UID: s.UID})
	if l == nil || l.Kind.Kind != s.Kind || l.Object.GetName() != s.Name {
		return nil
	}
	return l.Object
}

// split reports whether what scales a ReplicaSet, and is no Deployment, has pods of another one.
// Such a rollout is under way: it is not known which ReplicaSet would get one more replica.
func (c *cluster) split(object metav1.Object) bool {
	through := rebalance.ThroughOf(object)
	if _, set := object.(*appsv1.ReplicaSet); !set || through == nil {
		return false
	}
	for other := range world.In[*appsv1.ReplicaSet](c.World, object.GetNamespace()) {
		if other.UID != object.GetUID() && replicasOf(other) > 0 &&
			metav1.IsControlledBy(other, &metav1.ObjectMeta{UID: through.UID}) {
			return true
		}
	}
	return false
}

// notMade returns why a ReplicaSet's controller could not make a pod, or "". Where a quota or an
// admission webhook refuses the pod, the ReplicaSet's condition ReplicaFailure says so. owner is
// KIND/NAME.
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

// whole reports whether all pods of a workload run and are ready. Then its controller removes the
// one with the lowest deletion cost first. kube-controller-manager removes pods that are not
// running, or not ready, before it compares costs.
func (c *cluster) whole(w rules.Owner) bool {
	for _, p := range c.PodsOf(w) {
		if p.DeletionTimestamp == nil && !rules.IsTerminal(p) && (!ready(p) || p.Status.Phase != v1.PodRunning) {
			return false
		}
	}
	return true
}

// forbids returns which budget does without none of the ready pods that it covers once a surge is
// over, or "".
//
// It counts anew instead of reading the budget's status, which lags behind: the pod more that was
// just made may be in neither of its numbers yet.
func (c *cluster) forbids(victim *v1.Pod) string {
	for b := range world.In[*policyv1.PodDisruptionBudget](c.World, victim.Namespace) {
		var count disruption.Count
		covers := false
		for p := range c.covered(b) {
			covers = covers || p.UID == victim.UID
			count.AddPod(p, ready(p))
		}
		if !covers {
			continue
		}
		s := count.Status(b, c.Workloads())
		// One pod less is expected then, and one healthy pod less is there.
		if desired := disruption.Desired(&b.Spec, int(s.ExpectedPods-1)); s.CurrentHealthy-1 < desired {
			return fmt.Sprintf("the disruption budget %s needs %d healthy pods, and would have %d", b.Name, desired, s.CurrentHealthy-1)
		}
	}
	return ""
}

// node returns the node of that name, or nil.
func (c *cluster) node(name string) *v1.Node {
	n, _ := world.Get[*v1.Node](c.World, "", name)
	return n
}

// nodes returns all nodes by name, so that requests come in the same order each time.
func (c *cluster) nodes() []*v1.Node {
	return slices.Collect(world.All[*v1.Node](c.World))
}

// holding returns the nodes with a pod that can run elsewhere. Mirror pods, pods of DaemonSets and
// pods that have ended do not count: they do not keep a node from being empty.
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

// satisfied reports whether a workload has all the pods that it wants without the victim, so that
// there will be no successor. It is false for kinds that want no number of pods, or are unknown. A
// false negative only means that a successor is waited for until the time for that is up.
func (c *cluster) satisfied(p *departure) bool {
	l := c.Workloads().By(p.owner)
	return l != nil && l.Replicas != nil &&
		c.live(p.owner) >= int(*l.Replicas)
}

// live counts the pods of a controller that neither end nor have ended.
func (c *cluster) live(owner rules.Owner) (count int) {
	for _, p := range c.PodsOf(owner) {
		if p.DeletionTimestamp == nil && !rules.IsTerminal(p) {
			count++
		}
	}
	return count
}

// successor returns, of the new pods that may have been made in place of another one, the one that
// most likely was: one on its node rather than a pending one. isNew leaves out pods that were there
// before, or that succeed others. to is where it was planned to land: of several that may be it,
// that one is taken.
func (c *cluster) successor(of rules.Predecessor, to string, isNew func(p *v1.Pod) bool) *v1.Pod {
	var list []*v1.Pod
	for _, p := range c.PodsOf(rules.Owner{Namespace: of.Namespace, UID: of.Owner}) {
		if of.MayBeSucceededBy(p) && isNew(p) && p.DeletionTimestamp == nil && !rules.IsTerminal(p) {
			list = append(list, p)
		}
	}

	if len(list) == 0 {
		return nil
	}
	rank := func(p *v1.Pod) int {
		switch {
		case p.Spec.NodeName == "":
			return 2
		case p.Spec.NodeName == to && ready(p):
			return 0
		}
		return 1
	}

	return slices.MinFunc(list, func(a, b *v1.Pod) int {
		// The oldest of equals is the most likely to have been made for this victim, and the UID
		// makes the choice the same each time.
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
}

// ready reports whether the pod's condition Ready is true. Unlike [disruption.IsReady], a pod
// without the condition is not ready: in a cluster, the kubelet reports it.
func ready(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady &&
			c.Status == v1.ConditionTrue
	})
}
