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
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// cluster is the state of the API as far as it has been seen.
//
// It is written by the events that the owner is shown, and by nothing else: what was requested
// counts once it is seen. Objects are shared with plans, which run on other goroutines, so they are
// replaced and never changed.
type cluster struct {
	// objects are by kind, namespace and name; see keyOf.
	objects map[string]metav1.Object
	// byOwner has the pods among them by controller; those without one are under the zero Owner.
	byOwner map[rules.Owner]map[types.UID]*v1.Pod
}

// newCluster returns a cluster of which nothing has been seen.
func newCluster() *cluster {
	return &cluster{objects: map[string]metav1.Object{}, byOwner: map[rules.Owner]map[types.UID]*v1.Pod{}}
}

// keyOf identifies an object by its kind, namespace and name, not by its UID: an object that was
// deleted and made again takes the place of the first. The kind is the name of its Go type.
func keyOf(object metav1.Object) string {
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", object), ".")
	return kind + "/" + object.GetNamespace() + "/" + object.GetName()
}

// object returns the object of a kind and a name, or nil.
func (c *cluster) object(kind, namespace, name string) metav1.Object {
	return c.objects[kind+"/"+namespace+"/"+name]
}

// all are the objects of a type, in no particular order.
func all[T metav1.Object](c *cluster) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, object := range c.objects {
			if o, ok := object.(T); ok && !yield(o) {
				return
			}
		}
	}
}

// covered are the pods that a budget covers and that have not ended.
func (c *cluster) covered(b *policyv1.PodDisruptionBudget) iter.Seq[*v1.Pod] {
	return func(yield func(*v1.Pod) bool) {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			return
		}
		for p := range all[*v1.Pod](c) {
			if p.Namespace == b.Namespace && !rules.IsTerminal(p) && selector.Matches(labels.Set(p.Labels)) && !yield(p) {
				return
			}
		}
	}
}

// set records an object that is new or has changed. One of the same name is replaced.
func (c *cluster) set(object metav1.Object) {
	c.drop(object)
	c.objects[keyOf(object)] = object
	if p, ok := object.(*v1.Pod); ok {
		owner := rules.OwnerOf(p)
		if c.byOwner[owner] == nil {
			c.byOwner[owner] = map[types.UID]*v1.Pod{}
		}
		c.byOwner[owner][p.UID] = p
	}
}

// drop forgets an object of this name, whichever it was.
func (c *cluster) drop(object metav1.Object) {
	key := keyOf(object)
	if p, ok := c.objects[key].(*v1.Pod); ok {
		owner := rules.OwnerOf(p)
		delete(c.byOwner[owner], p.UID)
		if len(c.byOwner[owner]) == 0 {
			delete(c.byOwner, owner)
		}
	}
	delete(c.objects, key)
}

// see takes up an object that is new, has changed, or is gone.
func (c *cluster) see(event Event) {
	switch e := event.(type) {
	case Seen:
		c.set(e.Object)
	case Gone:
		c.drop(e.Object)
	}
}

// podsOf returns which pods a controller has.
func (c *cluster) podsOf(owner rules.Owner) map[types.UID]bool {
	pods := map[types.UID]bool{}
	for uid := range c.byOwner[owner] {
		pods[uid] = true
	}
	return pods
}

// state returns a copy for a plan. Nodes that are closed only during moves are open in it, because
// the plan closes them itself. Those that are empty stay closed. The list is in no particular
// order; objects are shared, except for the nodes that are changed.
func (c *cluster) state() (list []metav1.Object) {
	holding := c.holding()
	list = make([]metav1.Object, 0, len(c.objects))
	for _, object := range c.objects {
		if n, ok := object.(*v1.Node); ok && (taintOf(n) == valueRoom || taintOf(n) == valueEmpty && holding[n.Name]) {
			n = n.DeepCopy()
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == rebalance.EmptyingTaint })
			object = n
		}
		list = append(list, object)
	}
	return list
}

// pod returns the pod of that name if it is still the same one. nil also means that another one has
// its name by now, as that of a StatefulSet soon has.
func (c *cluster) pod(namespace, name string, uid types.UID) *v1.Pod {
	p, ok := c.object("Pod", namespace, name).(*v1.Pod)
	if !ok || p.UID != uid {
		return nil
	}
	return p
}

// scaled returns what a surge scales, if it is still the same one. nil if it is not there, or
// another one has its name.
func (c *cluster) scaled(s rebalance.Scaled) metav1.Object {
	object := c.object(s.Kind, s.Namespace, s.Name)
	if object == nil || object.GetUID() != s.UID {
		return nil
	}
	return object
}

// split reports whether what scales a ReplicaSet, and is no Deployment, has pods of another one.
// Such a rollout is under way: it is not known which ReplicaSet would get one more replica.
func (c *cluster) split(object metav1.Object) bool {
	through := rebalance.ThroughOf(object)
	if _, set := object.(*appsv1.ReplicaSet); !set || through == nil {
		return false
	}
	for other := range all[*appsv1.ReplicaSet](c) {
		if other.UID != object.GetUID() && other.Namespace == object.GetNamespace() && replicasOf(other) > 0 &&
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
	rs, ok := c.object("ReplicaSet", namespace, name).(*appsv1.ReplicaSet)
	if !ok {
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
	for _, p := range c.byOwner[w] {
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
	var workloads workload.Table
	for _, object := range c.objects {
		workloads.Put(object)
	}

	for b := range all[*policyv1.PodDisruptionBudget](c) {
		if b.Namespace != victim.Namespace {
			continue
		}
		var count disruption.Count
		covers := false
		for p := range c.covered(b) {
			covers = covers || p.UID == victim.UID
			count.AddPod(p, ready(p))
		}
		if !covers {
			continue
		}
		s := count.Status(b, &workloads)
		// One pod less is expected then, and one healthy pod less is there.
		if desired := disruption.Desired(&b.Spec, int(s.ExpectedPods-1)); s.CurrentHealthy-1 < desired {
			return fmt.Sprintf("the disruption budget %s needs %d healthy pods, and would have %d", b.Name, desired, s.CurrentHealthy-1)
		}
	}
	return ""
}

// node returns the node of that name, or nil.
func (c *cluster) node(name string) *v1.Node {
	n, _ := c.object("Node", "", name).(*v1.Node)
	return n
}

// nodes returns all nodes by name, so that requests come in the same order each time.
func (c *cluster) nodes() []*v1.Node {
	return slices.SortedFunc(all[*v1.Node](c), func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
}

// holding returns the nodes with a pod that can run elsewhere. Mirror pods, pods of DaemonSets and
// pods that have ended do not count: they do not keep a node from being empty.
func (c *cluster) holding() map[string]bool {
	nodes := map[string]bool{}
	for p := range all[*v1.Pod](c) {
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
	kind, name, _ := strings.Cut(p.Owner, "/")
	l := workload.Of(c.object(kind, p.Namespace, name))
	if l == nil || l.Replicas == nil || l.Object.GetUID() != p.owner.UID && l.Object.GetUID() != "" {
		return false
	}
	return c.live(p.owner) >= int(*l.Replicas)
}

// live counts the pods of a controller that neither end nor have ended.
func (c *cluster) live(owner rules.Owner) (count int) {
	for _, p := range c.byOwner[owner] {
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
	for _, p := range c.byOwner[rules.Owner{Namespace: of.Namespace, UID: of.Owner}] {
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
