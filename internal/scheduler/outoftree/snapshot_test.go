// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// TestTheSnapshotIsTheStateAtTheDecision verifies that the snapshot includes assumed pods, and does
// not change while the pod is scheduled.
func TestTheSnapshotIsTheStateAtTheDecision(t *testing.T) {
	f := newFixture(t, &fakePlugin{name: "A", quiet: true})
	f.node("n1", 4)
	first, _ := f.decide(pod("first", "1"))
	f.cluster.Place(first.Waiting, f.cluster.Node("n1"))
	f.expect("while the first is scheduled", podsOn(f, "n1"), "")
	f.decide(pod("second", "1"))
	f.expect("while the second is scheduled", podsOn(f, "n1"), "first")

	info, err := f.handle().SnapshotSharedLister().NodeInfos().Get("n1")
	if err != nil {
		t.Fatal(err)
	}
	if node := info.GetPods()[0].GetPod().Spec.NodeName; node != "n1" {
		t.Errorf("the assumed pod is on %q, not on n1", node)
	}
	f.cluster.RemovePod("first")
	f.decide(pod("third", "1"))
	f.expect("when it is gone", podsOn(f, "n1"), "")
	if n := len(info.GetPods()); n != 1 {
		t.Errorf("a NodeInfo that was handed out has %d pods now, not 1", n)
	}
}

func podsOn(f *fixture, node string) string {
	info, err := f.handle().SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return err.Error()
	}
	return podNames(info)
}

// TestPluginsSeeWholeObjects verifies that objects are current and include data irrelevant to
// Berth's own plugins.
func TestPluginsSeeWholeObjects(t *testing.T) {
	var seen string
	f := newFixture(t, &fakePlugin{name: "A", quiet: true, filter: func(_ fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
		seen = n.Node().Annotations["rack"]
		for _, p := range n.GetPods() {
			seen += " " + p.GetPod().Annotations["team"]
		}
		return nil
	}})
	in := func(rack string) func(*v1.Node) {
		return func(n *v1.Node) { n.Annotations = map[string]string{"rack": rack} }
	}
	of := func(team string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Annotations = map[string]string{"team": team} }
	}
	f.node("n1", 4, in("r1"))
	f.has(pod("there", "1", on("n1"), of("red")))
	f.decide(pod("p", "1"))
	f.expect("objects", seen, "r1 red")
	f.node("n1", 4, in("r2"))
	f.has(pod("there", "1", on("n1"), of("blue")))
	f.decide(pod("p", "1"))
	f.expect("objects after an update that decisions do not depend on", seen, "r2 blue")
}

func TestTheSnapshotFollowsNodes(t *testing.T) {
	f := newFixture(t, &fakePlugin{name: "A", quiet: true})
	list := func() (names string) {
		f.decide(pod("p", "1"))
		infos, err := f.handle().SnapshotSharedLister().NodeInfos().List()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range infos {
			names += n.Node().Name + " "
		}
		return names
	}
	f.expect("at first", list(), "")
	f.node("n1", 4)
	f.node("n2", 4)
	f.expect("with nodes", list(), "n1 n2 ")
	f.store.NodeGone("n1")
	f.cluster.RemoveNode("n1")
	f.expect("without one", list(), "n2 ")
	f.node("n3", 4)
	f.expect("with another in its place", list(), "n3 n2 ")
	if _, err := f.handle().SnapshotSharedLister().NodeInfos().Get("n1"); err == nil || err.Error() != `nodeinfo not found for node name "n1"` {
		t.Errorf("got %v for a node that is gone", err)
	}
}

// TestListsOfTheSnapshot verifies that lists show the state of the last pod's turn even if they
// were obtained before, because plugins obtain them once, at their creation.
func TestListsOfTheSnapshot(t *testing.T) {
	f := newFixture(t, &fakePlugin{name: "A", quiet: true})
	lister := f.handle().SnapshotSharedLister()
	nodes, volumes := lister.NodeInfos(), lister.StorageInfos()
	for _, name := range []string{"n1", "n2", "n3"} {
		f.node(name, 4)
	}
	term := v1.PodAffinityTerm{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{}}
	f.has(pod("friendly", "1", on("n1"), func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}}}
	}))
	f.has(pod("hostile", "1", on("n2"), func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
	}))
	f.has(pod("storing", "1", on("n3"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	}))
	f.decide(pod("p", "1"))
	if all, _ := nodes.List(); len(all) != 3 {
		t.Errorf("got %d nodes", len(all))
	}
	if _, err := nodes.Get("n1"); err != nil {
		t.Error(err)
	}
	affine, _ := nodes.HavePodsWithAffinityList()
	anti, _ := nodes.HavePodsWithRequiredAntiAffinityList()
	if len(affine) != 2 || len(anti) != 1 || anti[0].Node().Name != "n2" {
		t.Errorf("got %v with affinity and %v with required anti-affinity", affine, anti)
	}
	if !volumes.IsPVCUsedByPods("default/data") || volumes.IsPVCUsedByPods("default/other") {
		t.Error("claims in use are not told right")
	}
	if _, err := lister.PodGroupStates().Get("default", "g"); err == nil {
		t.Error("a pod group is known")
	}
}

// TestANodeInfoThatPluginsChange verifies that a copy counts added and removed pods, and the
// original does not change.
func TestANodeInfoThatPluginsChange(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	port := func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80}} }
	original := NewNodeInfo(node, pod("a", "1", port))
	changed := original.Snapshot()
	other := newPodInfo(pod("b", "500m", func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 81}} }))
	changed.AddPodInfo(other)
	if err := changed.RemovePod(klog.Background(), pod("a", "1", port)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		info fwk.NodeInfo
		pods string
		cpu  int64
		port int32
	}{{original, "a", 1000, 80}, {changed, "b", 500, 81}} {
		if podNames(c.info) != c.pods || c.info.GetRequested().GetMilliCPU() != c.cpu || c.info.GetNonZeroRequested().GetMilliCPU() != c.cpu ||
			!c.info.GetUsedPorts().CheckConflict("", "TCP", c.port) || c.info.GetUsedPorts().Len() != 1 {
			t.Errorf("got %v", c.info)
		}
	}
	if err := changed.RemovePod(klog.Background(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: types.UID("c")}}); err == nil ||
		err.Error() != "no corresponding pod c in pods of node n" {
		t.Errorf("got %v for a pod that is not there", err)
	}
	if original.GetGeneration() == changed.GetGeneration() {
		t.Error("the generation stays when pods change")
	}
}
