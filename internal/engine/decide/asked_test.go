// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// crowded is a plugin that must run on every node: it admits at most two pods of an app per node,
// and prefers nodes with many pods.
type crowded struct{}

func (crowded) Name() string        { return "Crowded" }
func (crowded) Reads() plugins.Part { return plugins.Contents | plugins.Objects }

func (crowded) Applies(_ *cluster.Cluster, p *cluster.Pod) bool {
	return p.Class.Labels.Get("app") == "x"
}

func (c crowded) Filter(_ *cluster.Cluster, p *cluster.Pod) plugins.Judge {
	if !c.Applies(nil, p) {
		return plugins.Judge{}
	}
	return plugins.Judge{Node: func(n *cluster.Node) *plugins.Rejection {
		same := 0
		for _, o := range n.Pods {
			if o.Class.Labels.Get("app") == "x" {
				same++
			}
		}
		if same >= 2 {
			return &plugins.Rejection{Code: "Crowded", Reasons: []string{"node(s) were crowded"}}
		}
		return nil
	}}
}

func (c crowded) Score(_ *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) plugins.Scoring {
	if !c.Applies(nil, p) {
		return plugins.Scoring{}
	}
	return plugins.Scoring{
		Node: func(n *cluster.Node) (int64, error) { return int64(len(n.Pods)), nil },
		Normalize: func(_ []*cluster.Node, scores []int64) {
			for i := range scores {
				scores[i] = min(plugins.MaxScore, scores[i]*20)
			}
		},
	}
}

// storage creates storage classes, zonal and host-local volumes, and claims in all states.
func (m *machine) storage(t *draw) {
	later, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	m.c.StorageClasses.Set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: "csi.example.com", VolumeBindingMode: &later})
	m.c.StorageClasses.Set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "found"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &later})
	m.c.StorageClasses.Set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "early"}, Provisioner: "csi.example.com", VolumeBindingMode: &now})
	name := one(t, "v1", "v2", "v3")
	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: "found", Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse(one(t, "1Gi", "2Gi"))},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: name}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	if host := one(t, "", "a", "b"); host != "" {
		volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{host}}}}}}}
	}
	if one(t, false, true) {
		volume.Labels[v1.LabelTopologyZone] = one(t, "z1", "z2")
	}
	m.c.Volumes.Set(volume)
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: one(t, "c1", "c2", "c3")},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes:      []v1.PersistentVolumeAccessMode{one(t, v1.ReadWriteOnce, v1.ReadWriteOncePod)},
			StorageClassName: new(one(t, "made", "found", "found", "early")),
			Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if one(t, false, true) {
		claim.Spec.VolumeName = name
		claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	}
	m.c.Claims.Set(claim)
	count := int32(one(t, 0, 1, 2))
	m.c.CSINodes.Set(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: one(t, "a", "b", "c")}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: "csi.example.com", NodeID: "n", Allocatable: &storagev1.VolumeNodeResources{Count: &count}}},
	}})
}

// storageGoes deletes a volume, a claim or the volume limit of a node.
func (m *machine) storageGoes(t *draw) {
	switch t.IntN(3) {
	case 0:
		m.c.Volumes.Delete("", one(t, "v1", "v2", "v3"))
	case 1:
		m.c.Claims.Delete("default", one(t, "c1", "c2", "c3"))
	default:
		m.c.CSINodes.Delete("", one(t, "a", "b", "c"))
	}
}

// volumes adds claims and disks to some pods.
func (m *machine) volumes(t *draw, pod *v1.Pod) {
	for i := range one(t, 0, 0, 0, 0, 1, 1, 2) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprintf("claim-%d", i), VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: one(t, "c1", "c2", "c3")},
		}})
	}
	if one(t, false, false, false, false, true) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{
			GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: one(t, "d1", "d2")},
		}})
	}
}

// TestPodsThatOthersTellApartAreRankedApart verifies that two pods with the same spec but different
// labels have separate rankings if one placed pod repels pods labelled x and another placed pod
// repels pods labelled y.
func TestPodsThatOthersTellApartAreRankedApart(t *testing.T) {
	c := cluster.New()
	for _, name := range []string{"a", "b"} {
		c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
			Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourcePods: resource.MustParse("10")}},
		})
	}
	pod := func(name, app, node, repels string) *v1.Pod {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": app}}}
		pod.Spec = v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c"}}}
		if repels != "" {
			pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
				TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": repels}},
			}}}}
		}
		return pod
	}
	c.SetPod(pod("p1", "one", "a", "x"))
	c.SetPod(pod("p2", "two", "b", "y"))
	d := New(c, plugins.Default(), 1)
	for app, want := range map[string]string{"x": "b", "y": "a"} {
		if got := d.Decide(c.Pending(pod("waits-"+app, app, "", ""))); got.Node == nil || got.Node.Name != want {
			t.Errorf("app %s goes to %+v, want %s", app, got.Node, want)
		}
	}
	if len(d.cache.rankings) != 2 {
		t.Errorf("%d rankings, want one for each", len(d.cache.rankings))
	}
	d.Decide(c.Pending(pod("waits-z", "z", "", "")))
	d.Decide(c.Pending(pod("waits-zz", "zz", "", "")))
	if len(d.cache.rankings) != 3 {
		t.Errorf("%d rankings, want one for the two that nobody tells apart", len(d.cache.rankings)-2)
	}
}

// TestSummitKnowsTheHighest verifies that a maxTree returns the highest of many numbers and the
// count of its occurrences after arbitrary changes.
func TestSummitKnowsTheHighest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := make([]int16, rapid.SampledFrom([]int{1, 64, 65, 300, 4096, 4200}).Draw(t, "numbers"))
		s := newMaxTree(numbers)
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			for range rapid.IntRange(0, 12).Draw(t, "changes") {
				i := rapid.IntRange(0, len(numbers)-1).Draw(t, "which")
				before := numbers[i]
				numbers[i] = int16(rapid.IntRange(-3, 5).Draw(t, "number"))
				s.numberChanged(int32(i), before)
			}
			want, top := maximumOf(numbers), s.highestOf()
			if top != want {
				t.Fatalf("highest is %+v, want %+v", top, want)
			}
			if n := s.nth(int(want.many)-1, top); numbers[n] != want.height {
				t.Fatalf("number %d is %d, not the highest", n, numbers[n])
			}
		}
	})
}

// TestNodesAreScoredTogether verifies that scorers can run on several nodes concurrently. Each node
// holds pods of classes found on no other node, so a scorer's per-class cache is written
// constantly.
func TestNodesAreScoredTogether(t *testing.T) {
	c := cluster.New()
	alike := func(name, extra string) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "a", "of": extra}},
			Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}, TopologySpreadConstraints: []v1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
			}},
		}
	}
	const nodes, empty = 2000, 1234
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
			Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("10")}},
		})
		for j := range 4 {
			if i == empty {
				break
			}
			p := alike(fmt.Sprintf("p-%d-%d", i, j), fmt.Sprintf("%d-%d", i, j))
			p.Spec.NodeName = name
			c.SetPod(p)
		}
	}
	e := NewPlain(c, plugins.Default()).Evaluate(c.Pending(alike("new", "new")))
	if best := e.Best(); e.Err != nil || e.Feasible != nodes || len(best) != 1 || best[0].Node.Name != fmt.Sprintf("node-%d", empty) {
		t.Errorf("%v, %d feasible, best %v", e.Err, e.Feasible, best)
	}
}
