// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// waitingPods is a cluster with pods waiting in a queue.
type waitingPods struct {
	c     *cluster.Cluster
	q     *queue.Queue
	asked int
}

func newWaitingPods(c *cluster.Cluster, narrowed bool) *waitingPods {
	w := &waitingPods{c: c, q: queue.New()}
	interests := plugins.Default().Interests(c, nil)
	if !narrowed {
		interests = maps.Clone(interests)
		for name, list := range interests {
			list = slices.Clone(list)
			for i := range list {
				list[i].Narrowing = nil
			}
			interests[name] = list
		}
	}
	w.q.SetInterests(v1.DefaultSchedulerName, interests)
	w.q.Asked = func(string, string, bool, time.Duration) { w.asked++ }
	return w
}

// reject adds a pod that the given plugins have rejected, and that waits for events that can help.
func (w *waitingPods) reject(pod *v1.Pod, rejectors ...string) {
	w.q.Add(pod, w.c.Pending(pod).Class, epoch)
	w.q.Rejected(w.q.Pop(epoch), rejectors, nil, epoch)
}

// woken lists the pods that no longer wait.
func (w *waitingPods) woken() (names []string) {
	for item := range w.q.Each {
		if item.Place() != queue.Waiting {
			names = append(names, item.Pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

// TestNarrowingsLeaveNobodyOut requires narrowing to wake the same pods as calling the hint of
// every waiting class.
func TestNarrowingsLeaveNobodyOut(t *testing.T) {
	rejectors := []string{
		"NodeResourcesFit", "InterPodAffinity", "PodTopologySpread", "NodeAffinity", "TaintToleration", "NodeUnschedulable", "NodePorts",
		"VolumeBinding", "VolumeZone", "VolumeRestrictions", "NodeVolumeLimits",
	}
	woken, asked, narrowed, by := 0, 0, 0, map[string]int{}
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c := cluster.New()
		for i := range 3 {
			c.SetNode(drawnNode(rng, fmt.Sprint("n", i)))
		}
		c.Namespaces.Set(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "a"}}})
		for _, claim := range []string{"a", "b", "c"} {
			c.Claims.Set(drawnClaim(rng, claim))
		}
		placed := []*cluster.Pod{}
		for i := range 8 {
			pod := waitingPod(rng, fmt.Sprint("placed-", i))
			pod.Spec.NodeName = fmt.Sprint("n", rng.IntN(3))
			placed = append(placed, c.SetPod(pod))
		}
		all, some := newWaitingPods(c, false), newWaitingPods(c, true)
		for i := range 30 {
			pod := waitingPod(rng, fmt.Sprint("waiting-", i))
			rejected := []string{rejectors[rng.IntN(len(rejectors))], rejectors[rng.IntN(len(rejectors))]}
			slices.Sort(rejected)
			rejected = slices.Compact(rejected)
			all.reject(pod, rejected...)
			some.reject(pod, rejected...)
		}
		for range 3 {
			e := anEvent(rng, c, placed)
			before := len(all.woken())
			all.q.Happened(e, epoch)
			some.q.Happened(e, epoch)
			if a, b := all.woken(), some.woken(); !slices.Equal(a, b) {
				t.Fatalf("seed %d: %s %s wakes %v, narrowed down %v", seed, e.Resource, e.Action, a, b)
			}
			if len(all.woken()) > before {
				by[fmt.Sprint(e.Resource, " ", e.Action)]++
			}
		}
		woken, asked, narrowed = woken+len(all.woken()), asked+all.asked, narrowed+some.asked
	}
	if woken < 1000 || len(by) < 14 || narrowed > asked*3/4 {
		t.Errorf("%d pods were woken, by %v; %d hints were asked, narrowed down %d: the test says little", woken, by, asked, narrowed)
	}
}

// waitingPod returns a pod with a random selection of the properties read by hints.
func waitingPod(rng *rand.Rand, name string) *v1.Pod {
	app := func() string { return string(rune('a' + rng.IntN(6))) }
	pod := aPod(name, []string{"0", "500m", "1", "2", "3"}[rng.IntN(5)], priority(rng.Int32N(3)))
	pod.Labels = map[string]string{"app": app()}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app()}}
	switch rng.IntN(8) {
	case 0:
		selector = &metav1.LabelSelector{}
	case 1:
		selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{app()}}}}
	}
	switch rng.IntN(4) {
	case 0:
		attracted(app())(pod)
		pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector = selector
	case 1:
		repelled(app())(pod)
		pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector = selector
	case 2:
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selector,
		}}
		if rng.IntN(2) == 0 {
			pod.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = ptr.To(v1.NodeInclusionPolicyHonor)
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil && rng.IntN(3) == 0 {
		a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": app()}}
	}
	if rng.IntN(3) == 0 {
		drawSelection(rng, pod)
	}
	switch rng.IntN(6) {
	case 0:
		pod.Spec.Tolerations = []v1.Toleration{{Key: "dedicated", Operator: v1.TolerationOpExists}}
	case 1:
		pod.Spec.Tolerations = []v1.Toleration{{Key: "dedicated", Value: app()}, {Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists}}
	case 2:
		pod.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: []v1.TaintEffect{"", v1.TaintEffectNoExecute}[rng.IntN(2)]}}
	}
	if rng.IntN(4) == 0 {
		pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: []string{"a", "b", "c"}[rng.IntN(3)]}}}}
	}
	if rng.IntN(4) == 0 {
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80 + rng.Int32N(2)}}
	}
	return pod
}

// drawSelection makes the pod select nodes by their labels or names.
func drawSelection(rng *rand.Rand, pod *v1.Pod) {
	if rng.IntN(2) == 0 {
		pod.Spec.NodeSelector = map[string]string{[]string{"pool", v1.LabelTopologyZone, v1.LabelHostname}[rng.IntN(3)]: drawnValue(rng)}
		if rng.IntN(2) == 0 {
			return
		}
	}
	operators := []v1.NodeSelectorOperator{
		v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist, v1.NodeSelectorOpGt,
	}
	required := &v1.NodeSelector{}
	for range 1 + rng.IntN(2) {
		term := v1.NodeSelectorTerm{}
		for range 1 + rng.IntN(2) {
			e := v1.NodeSelectorRequirement{Key: []string{"pool", "disk"}[rng.IntN(2)], Operator: operators[rng.IntN(len(operators))]}
			switch e.Operator {
			case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
				e.Values = []string{drawnValue(rng), drawnValue(rng)}
			case v1.NodeSelectorOpGt:
				e.Values = []string{"1"}
			}
			term.MatchExpressions = append(term.MatchExpressions, e)
		}
		if rng.IntN(4) == 0 {
			term.MatchFields = []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: operators[rng.IntN(2)], Values: []string{fmt.Sprint("n", rng.IntN(3))}}}
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &v1.Affinity{}
	}
	pod.Spec.Affinity.NodeAffinity = &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}
}

func drawnValue(rng *rand.Rand) string { return []string{"a", "b", "1", "2", "n1"}[rng.IntN(5)] }

func drawnNode(rng *rand.Rand, name string) *v1.Node {
	n := aNode(name, fmt.Sprint(1+rng.IntN(4)))
	for _, key := range []string{"pool", "disk", v1.LabelTopologyZone} {
		if delete(n.Labels, key); rng.IntN(3) > 0 {
			n.Labels[key] = drawnValue(rng)
		}
	}
	n.Spec.Unschedulable = rng.IntN(3) == 0
	for _, effect := range []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute, v1.TaintEffectPreferNoSchedule} {
		if rng.IntN(3) == 0 {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: []string{"dedicated", "node.kubernetes.io/other"}[rng.IntN(2)], Value: drawnValue(rng), Effect: effect})
		}
	}
	return n
}

// changedNode copies some property of another node, and returns the matching action.
func changedNode(rng *rand.Rand, was, other *v1.Node) (*v1.Node, queue.Action) {
	is := was.DeepCopy()
	switch rng.IntN(4) {
	case 0:
		is.Labels = other.Labels
		return is, queue.UpdateNodeLabel
	case 1:
		is.Spec = other.Spec
		return is, queue.UpdateNodeTaint
	case 2:
		is.Status = other.Status
		return is, queue.UpdateNodeAllocatable
	}
	return other, queue.UpdateNodeLabel | queue.UpdateNodeTaint | queue.UpdateNodeAllocatable
}

func drawnClaim(rng *rand.Rand, name string) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(fmt.Sprint(rng.IntN(3)))}}
	if rng.IntN(2) == 0 {
		claim.Spec.VolumeName = []string{"x", "y"}[rng.IntN(2)]
	}
	return claim
}

func drawnVolume(rng *rand.Rand) *v1.PersistentVolume {
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: []string{"x", "y"}[rng.IntN(2)]}}
	if rng.IntN(2) == 0 {
		volume.Labels = map[string]string{v1.LabelTopologyZone: drawnValue(rng)}
	}
	if rng.IntN(2) == 0 {
		volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: []string{"a", "b", "c"}[rng.IntN(3)]}
	}
	if rng.IntN(2) == 0 {
		volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: "pool", Operator: v1.NodeSelectorOpIn, Values: []string{drawnValue(rng)}}}}}}}
	}
	return volume
}

// anEvent is the arrival, departure or replacement of a pod, or an event of a node.
func anEvent(rng *rand.Rand, c *cluster.Cluster, placed []*cluster.Pod) *queue.Event {
	p := placed[rng.IntN(len(placed))]
	e := &queue.Event{Resource: queue.Pod, Action: queue.Delete, PodBefore: p, Node: c.Node(p.NodeName)}
	name := fmt.Sprint("n", rng.IntN(3))
	before := c.Node(name)
	if before != nil {
		before = before.Copy(nil)
	}
	switch rng.IntN(11) {
	case 0:
		e.Action, e.PodBefore, e.Pod = queue.Add, nil, p
	case 3, 4, 5:
		is, action := drawnNode(rng, name), queue.Add
		if before != nil {
			is, action = changedNode(rng, before.Object(), is)
		}
		c.SetNode(is)
		return &queue.Event{Resource: queue.Node, Action: action, NodeBefore: before, Node: c.Node(name)}
	case 6:
		if c.RemoveNode(name); before != nil {
			return &queue.Event{Resource: queue.Node, Action: queue.Delete, NodeBefore: before}
		}
	case 7:
		was, _ := c.Namespaces.Get("", "default")
		is := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: []string{"default", "other"}[rng.IntN(2)], Labels: map[string]string{"team": drawnValue(rng)}}}
		c.Namespaces.Set(is)
		if is.Name != was.Name {
			return &queue.Event{Resource: queue.Namespace, Action: queue.Add, New: is}
		}
		return &queue.Event{Resource: queue.Namespace, Action: queue.Update, Old: was, New: is}
	case 8:
		was, _ := c.Claims.Get("default", "b")
		is := drawnClaim(rng, "b")
		c.Claims.Set(is)
		return &queue.Event{Resource: queue.Claim, Action: queue.Update, Old: was, New: is}
	case 9:
		is := drawnVolume(rng)
		e := &queue.Event{Resource: queue.Volume, Action: queue.Add, New: is}
		if was, known := c.Volumes.Get("", is.Name); known {
			e.Action, e.Old = queue.Update, was
		}
		c.Volumes.Set(is)
		return e
	case 1:
		other := c.Pending(waitingPod(rng, p.Name()))
		other.SetNodeName(p.NodeName)
		e.Action, e.Pod = queue.UpdatePodLabel|queue.UpdatePodScaleDown, other
	case 2:
		if before != nil {
			return &queue.Event{Resource: queue.Node, Action: queue.Add, Node: c.Node(name)}
		}
	default:
		c.RemovePod(p.UID())
	}
	return e
}
