// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// wakingCase is a set of waiting pods, each of a separate class, and an event that can help few of
// them.
type wakingCase struct {
	name     string
	rejector string
	pod      func(name string, i int) *v1.Pod
	event    func(c *cluster.Cluster) *queue.Event
	nobody   bool // the event helps no pod
}

var wakingCases = []wakingCase{
	{name: "room, a pod leaves", rejector: "NodeResourcesFit", pod: ofSize, event: leaving(ofSize)},
	{name: "room, a node comes", rejector: "NodeResourcesFit", pod: ofSize, event: coming},
	{name: "anti-affinity, a pod leaves", rejector: "InterPodAffinity", pod: awayFromItself, event: leaving(awayFromItself)},
	{name: "anti-affinity, a node changes a label", rejector: "InterPodAffinity", pod: awayFromItself, event: relabelled("rack"), nobody: true},
	{name: "affinity, a pod comes", rejector: "InterPodAffinity", pod: withItself, event: arriving(withItself)},
	{name: "affinity, a node changes a label", rejector: "InterPodAffinity", pod: withItself, event: relabelled("rack"), nobody: true},
	{name: "affinity, a namespace comes", rejector: "InterPodAffinity", pod: withItself, event: namespaceComes, nobody: true},
	{name: "spread, a pod leaves", rejector: "PodTopologySpread", pod: spread, event: leaving(spread)},
	{name: "spread, a node changes a label", rejector: "PodTopologySpread", pod: spread, event: relabelled("rack"), nobody: true},
	{name: "selector, a node comes", rejector: "NodeAffinity", pod: ofPool, event: coming},
	{name: "selector, a node changes a label", rejector: "NodeAffinity", pod: ofPool, event: relabelled("pool")},
	{name: "selector, a node changes another label", rejector: "NodeAffinity", pod: ofPool, event: relabelled("rack"), nobody: true},
	{name: "taints, a node loses one", rejector: "TaintToleration", pod: tolerating, event: untainted},
	{name: "claims, one comes", rejector: "VolumeBinding", pod: withClaim, event: claimComes},
	{name: "claims, a volume comes", rejector: "VolumeBinding", pod: withClaim, event: volumeComes},
	{name: "claims, a node changes a label", rejector: "VolumeBinding", pod: withClaim, event: relabelled("rack"), nobody: true},
}

func ofSize(name string, i int) *v1.Pod         { return aPod(name, fmt.Sprintf("%dm", 1000+i)) }
func awayFromItself(name string, _ int) *v1.Pod { return aPod(name, "1", repelled(name)) }
func withItself(name string, _ int) *v1.Pod     { return aPod(name, "1", attracted(name)) }

func spread(name string, _ int) *v1.Pod {
	pod := aPod(name, "1")
	pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
	}}
	return pod
}

// ofPool requires a label common to all nodes, and a label of a single node.
func ofPool(name string, _ int) *v1.Pod {
	return aPod(name, "1", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: "a", "pool": name} })
}

func tolerating(name string, _ int) *v1.Pod {
	return aPod(name, "1", func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: "dedicated", Value: name}} })
}

func withClaim(name string, _ int) *v1.Pod {
	return aPod(name, "1", func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	})
}

func leaving(pod func(name string, i int) *v1.Pod) func(c *cluster.Cluster) *queue.Event {
	return func(c *cluster.Cluster) *queue.Event {
		return &queue.Event{Resource: queue.Pod, Action: queue.Delete, PodBefore: c.Pending(pod("p5", 5)), Node: c.Node("n")}
	}
}

func arriving(pod func(name string, i int) *v1.Pod) func(c *cluster.Cluster) *queue.Event {
	return func(c *cluster.Cluster) *queue.Event {
		return &queue.Event{Resource: queue.Pod, Action: queue.Add, Pod: c.Pending(pod("p5", 5)), Node: c.Node("n")}
	}
}

func coming(c *cluster.Cluster) *queue.Event {
	return &queue.Event{Resource: queue.Node, Action: queue.Add, Node: c.Node("n")}
}

func relabelled(key string) func(c *cluster.Cluster) *queue.Event {
	return func(c *cluster.Cluster) *queue.Event {
		was := c.Node("n").Object().DeepCopy()
		was.Labels[key] = "another"
		return &queue.Event{Resource: queue.Node, Action: queue.UpdateNodeLabel, NodeBefore: asNode(was), Node: c.Node("n")}
	}
}

func untainted(c *cluster.Cluster) *queue.Event {
	was := c.Node("n").Object().DeepCopy()
	was.Spec.Taints = append(was.Spec.Taints, v1.Taint{Key: "maintenance", Effect: v1.TaintEffectNoExecute})
	return &queue.Event{Resource: queue.Node, Action: queue.UpdateNodeTaint, NodeBefore: asNode(was), Node: c.Node("n")}
}

// asNode reads a node outside any cluster.
func asNode(node *v1.Node) *cluster.Node { return cluster.New().SetNode(node) }

func claimComes(*cluster.Cluster) *queue.Event {
	return &queue.Event{Resource: queue.Claim, Action: queue.Add, New: aClaim("p5")}
}

func aClaim(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func volumeComes(c *cluster.Cluster) *queue.Event {
	c.Claims.Set(aClaim("p5"))
	return &queue.Event{Resource: queue.Volume, Action: queue.Add, New: &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{Namespace: "default", Name: "p5"}}}}
}

func namespaceComes(*cluster.Cluster) *queue.Event {
	return &queue.Event{Resource: queue.Namespace, Action: queue.Add, New: &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "another"}}}
}

// waiting returns a cluster with the given number of waiting pods of the case.
func (wc *wakingCase) waiting(many int, narrowed bool) *waitingPods {
	c := cluster.New()
	c.SetNode(aNode("n", "1010m", func(n *v1.Node) {
		n.Labels["pool"] = "p5"
		if wc.rejector == "TaintToleration" {
			n.Spec.Taints = []v1.Taint{{Key: "dedicated", Value: "p5", Effect: v1.TaintEffectNoSchedule}}
		}
	}))
	w := newWaitingPods(c, narrowed)
	for i := range many {
		w.reject(wc.pod(fmt.Sprint("p", i), i), wc.rejector)
	}
	return w
}

// TestEventIsHeldAgainstThoseItCanHelp verifies that hints are called for only a few of two
// thousand waiting classes.
func TestEventIsHeldAgainstThoseItCanHelp(t *testing.T) {
	for _, wc := range wakingCases {
		t.Run(wc.name, func(t *testing.T) {
			w := wc.waiting(2000, true)
			w.q.Happened(wc.event(w.c), epoch)
			if got := len(w.woken()); (got == 0) != wc.nobody || got > 20 || w.asked > 20 {
				t.Errorf("%d pods are woken, and %d were asked about", got, w.asked)
			}
		})
	}
}

// TestNodesHelpPodsWhoseVolumesTheyServe verifies that a new node wakes a pod only if the pod's
// bound volume can be used there. If the claim does not exist, the pod waits for the claim instead.
func TestNodesHelpPodsWhoseVolumesTheyServe(t *testing.T) {
	wc := wakingCase{rejector: "VolumeBinding", pod: withClaim}
	w := wc.waiting(1, true)
	comes := func(want int, when string) {
		t.Helper()
		w.q.Happened(coming(w.c), epoch)
		if got := len(w.woken()); got != want {
			t.Errorf("%s: %d pods are woken, want %d", when, got, want)
		}
	}
	comes(0, "there is no claim")
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1.PersistentVolumeSpec{
		ClaimRef: &v1.ObjectReference{Namespace: "default", Name: "p0"},
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: "pool", Operator: v1.NodeSelectorOpIn, Values: []string{"elsewhere"}}}}}}},
	}}
	claim := aClaim("p0")
	claim.Spec.VolumeName = "v"
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	w.c.Volumes.Set(volume)
	w.c.Claims.Set(claim)
	comes(0, "its volume is elsewhere")
	volume = volume.DeepCopy()
	volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] = "p5"
	w.c.Volumes.Set(volume)
	comes(1, "its volume is there")
}

// TestLabelsOfADriverHelpPodsWithMigratedVolumes verifies that a pod with a migrated volume is
// woken when the CSI driver labels the node.
func TestLabelsOfADriverHelpPodsWithMigratedVolumes(t *testing.T) {
	wc := wakingCase{rejector: "VolumeBinding", pod: withClaim}
	w := wc.waiting(1, true)
	w.c.Volumes.Set(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1.PersistentVolumeSpec{
		ClaimRef:               &v1.ObjectReference{Namespace: "default", Name: "p0"},
		PersistentVolumeSource: v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}},
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{"far"}}}}}}},
	}})
	claim := aClaim("p0")
	claim.Spec.VolumeName = "v"
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	w.c.Claims.Set(claim)
	w.c.CSINodes.Set(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: "n", Annotations: map[string]string{v1.MigratedPluginsAnnotationKey: "kubernetes.io/gce-pd"},
	}})
	before := w.c.Node("n").Object().DeepCopy()
	node := before.DeepCopy()
	node.Labels["topology.gke.io/zone"] = "far"
	w.q.Happened(&queue.Event{Resource: queue.Node, Action: queue.UpdateNodeLabel, NodeBefore: asNode(before), Node: w.c.SetNode(node)}, epoch)
	if got := len(w.woken()); got != 1 {
		t.Errorf("%d pods are woken, want 1", got)
	}
}

// BenchmarkEvent measures an event with ten thousand waiting pods, each of a separate class. Woken
// pods are rejected again. "all asked" runs without narrowings.
func BenchmarkEvent(b *testing.B) {
	for _, wc := range wakingCases {
		for _, narrowed := range []bool{true, false} {
			name := wc.name
			if !narrowed {
				name += ", all asked"
			}
			b.Run(name, func(b *testing.B) {
				w := wc.waiting(10_000, narrowed)
				e := wc.event(w.c)
				for b.Loop() {
					w.q.Happened(e, epoch)
					for item := w.q.Pop(epoch); item != nil; item = w.q.Pop(epoch) {
						w.q.Rejected(item, []string{wc.rejector}, []string{wc.rejector}, epoch)
					}
				}
			})
		}
	}
}
