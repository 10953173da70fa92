// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// volumeWorld is a cluster with zonal volumes, drivers with limits and ReadWriteOncePod volumes,
// and pending pods that need both room and such volumes.
type volumeWorld struct {
	*rand.Rand
	c      *cluster.Cluster
	d      *Decider
	serial int
}

const volumesOfWorld = 40

func newVolumeWorld(seed uint64) *volumeWorld {
	w := &volumeWorld{Rand: rand.New(rand.NewPCG(seed, 7)), c: benchCluster(130, false)}
	for i := range volumesOfWorld {
		name := fmt.Sprint("volume-", i)
		volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, ClaimRef: &v1.ObjectReference{Namespace: "default", Name: name},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: name}},
		}}
		if i%4 == 0 {
			volume.Labels = map[string]string{v1.LabelTopologyZone: fmt.Sprint("z", w.IntN(3))}
		}
		if i%5 == 0 {
			volume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
		}
		w.c.Volumes.Set(volume)
		w.c.Claims.Set(&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: volume.Spec.AccessModes},
		})
	}
	for _, n := range w.c.Nodes {
		if w.IntN(3) > 0 {
			w.c.CSINodes.Set(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: "csi.example.com", NodeID: n.Name, Allocatable: &storagev1.VolumeNodeResources{Count: new(1 + w.Int32N(3))},
			}}}})
		}
		for range 9 + w.IntN(2) {
			w.c.SetPod(w.pod("low", n.Name))
		}
	}
	w.d = New(w.c, plugins.Default(), seed)
	return w
}

func (w *volumeWorld) pod(name, node string) *v1.Pod {
	w.serial++
	pod := benchPod(0, "plain")
	pod.Name, pod.UID, pod.Spec.NodeName = fmt.Sprint(name, "-", w.serial), types.UID(fmt.Sprint(name, "-", w.serial)), node
	pod.Spec.Priority, pod.Status.StartTime = new(w.Int32N(3)), &metav1.Time{Time: metav1.Unix(w.Int64N(10), 0).Time}
	pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse([]string{"3500m", "3"}[w.IntN(2)])}
	for i := range w.IntN(3) {
		source := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("volume-", w.IntN(volumesOfWorld))}}
		if w.IntN(16) == 0 {
			source = v1.VolumeSource{RBD: &v1.RBDVolumeSource{CephMonitors: []string{"m"}, RBDPool: "p", RBDImage: fmt.Sprint(w.IntN(5))}}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("v", i), VolumeSource: source})
	}
	return pod
}

// change makes one random change of the kinds that happen between two preemptions.
func (w *volumeWorld) change() {
	n := w.c.Nodes[w.IntN(len(w.c.Nodes))]
	switch w.IntN(8) {
	case 0:
		if len(n.Pods) > 0 {
			w.c.RemovePod(n.Pods[w.IntN(len(n.Pods))].UID())
		}
	case 1, 4, 5:
		w.c.SetPod(w.pod("low", n.Name))
	case 2, 6: // the volume is attached by any user
		volume := fmt.Sprint("volume-", w.IntN(volumesOfWorld))
		w.c.VolumeAttachments.Set(&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(n.Name, volume)},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: n.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
		})
	case 3:
		guest := w.pod("guest", "")
		*guest.Spec.Priority = 100
		w.c.Nominate(w.c.Pending(guest), n.Name)
	}
}

// TestPreemptingForVolumesIsRemembered verifies that after a pod has preempted, another pod of its
// class with a volume reuses the cached choices of victims.
func TestPreemptingForVolumesIsRemembered(t *testing.T) {
	const nodes, mostAllocations = 1000, 300 // examining all nodes again takes more than ten per node
	c := benchCluster(nodes, false)
	claims(c, 2)
	for i := range 10 * nodes {
		pod := benchPod(0, "plain")
		pod.Name, pod.UID, pod.Spec.NodeName = fmt.Sprint("low-", i), types.UID(fmt.Sprint("low-", i)), c.Nodes[i%nodes].Name
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("3200m")}
		c.SetPod(pod)
	}
	d := New(c, plugins.Default(), 1)
	preempt := func(i int) {
		pod := benchPod(i, "volumes")
		pod.Labels, pod.Spec.Priority = map[string]string{"app": "high"}, new(int32(100))
		p := c.Pending(pod)
		d.Decide(p)
		if found := d.Preempt(p); len(found.Victims) != 1 {
			t.Fatalf("%d victims: %s", len(found.Victims), found.Message)
		}
	}
	preempt(0)
	if n := testing.AllocsPerRun(10, func() { preempt(1) }); n > mostAllocations {
		t.Errorf("%.0f allocations for %d nodes, more than %d", n, nodes, mostAllocations)
	}
}

// TestCandidatesOfPodsWithVolumes verifies that for pods with volumes, the costs derived from the
// cached costs of the class equal uncached costs on each node, with the same draws.
func TestCandidatesOfPodsWithVolumes(t *testing.T) {
	compared, computed, out := 0, 0, 0
	for seed := range uint64(12) {
		w := newVolumeWorld(seed)
		for step := range 25 {
			for range w.IntN(4) {
				w.change()
			}
			pod := w.pod("high", "")
			pod.Spec.Priority = new(10 * (1 + w.Int32N(2)))
			pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse([]string{"5", "7"}[w.IntN(2)])}
			p := w.c.Pending(pod)
			if decision := w.d.Decide(p); decision.Node != nil || decision.Err != nil {
				continue
			}
			r, pl := w.d.cache.rankingFor(p)
			if pl.way != ranked {
				continue
			}
			questions, ok := pl.questionsFor(w.c, p)
			if !ok {
				continue
			}

			b, left := newBudgets(w.c, w.d.profile, p), effort.NewBudget(w.d.limits, w.c)
			asked := askCandidates(w.d.cache.candidatesFor(r), &hypothesis{r: r, p: p, profile: w.d.profile, questions: questions}, b, left)
			if asked == nil {
				t.Fatalf("seed %d, step %d: not asked about nodes as they are", seed, step)
			}
			full, each := &candidates{rebuilds: r.rebuilds}, &hypothesis{r: r, p: p, profile: w.d.profile, questions: questions}
			full.refreshCosts(each, b, effort.NewBudget(w.d.limits, w.c))

			got, want := asked.cheapestNode(newTie(uint64(step)), none), full.cheapestNode(newTie(uint64(step)), none)
			if got != want {
				t.Fatalf("seed %d, step %d: node %d is the cheapest, want %d", seed, step, got, want)
			}
			for node := range full.byNode {
				k, want := asked.costOf(int32(node)), &full.byNode[node]
				candidate := k.candidate && !asked.isOut(int32(node)) && asked.suits(int32(node))
				if candidate != want.candidate || candidate && k.compare(want) != 0 {
					t.Fatalf("seed %d, step %d: node %d costs %+v (a candidate: %t), want %+v", seed, step, node, k, candidate, want)
				}
				compared++
				computed += int(asked.computed[node>>6] >> (node & 63) & 1)
				out += int(asked.out[node>>6] >> (node & 63) & 1)
			}
		}
	}
	if t.Logf("of %d nodes, %d were computed and %d left out", compared, computed, out); computed == 0 || out == 0 || computed > compared/2 {
		t.Errorf("of %d nodes, %d were computed and %d left out", compared, computed, out)
	}
}
