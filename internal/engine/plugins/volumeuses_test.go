// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// TestVolumesAreFollowed requires a plugin that has followed all changes of pods, claims, volumes
// and attachments to give the same verdicts as a new one.
func TestVolumesAreFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &volumeWorld{T: t, c: cluster.New()}
		for i := range 3 {
			w.c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}})
			w.setCSINode(i)
		}
		for i := range 4 {
			volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("v%d", i)}}
			volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: fmt.Sprint(i)}
			w.c.Volumes.Set(volume)
		}
		for range rapid.IntRange(5, 30).Draw(t, "steps") {
			w.step()
			w.compare()
		}
	})
}

type volumeWorld struct {
	*rapid.T
	c    *cluster.Cluster
	v    NodeVolumeLimits
	pods int
}

func (w *volumeWorld) pick(what string, n int) int { return rapid.IntRange(0, n-1).Draw(w.T, what) }

func (w *volumeWorld) step() {
	claim, volume := fmt.Sprintf("c%d", w.pick("claim", 4)), fmt.Sprintf("v%d", w.pick("volume", 4))
	switch w.pick("what", 10) {
	case 0, 1:
		pod := w.pod()
		pod.Spec.NodeName = fmt.Sprintf("n%d", w.pick("node", 3))
		w.c.SetPod(pod)
	case 2:
		w.c.RemovePod(types.UID(fmt.Sprint(w.pick("pod", w.pods+1))))
	case 3, 4:
		object := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: claim}}
		object.Spec.VolumeName, object.Spec.StorageClassName = volume, new("made")
		if w.pick("bound", 2) == 0 {
			object.Spec.VolumeName = ""
		}
		w.c.Claims.Set(object)
	case 5:
		w.c.Claims.Delete("default", claim)
	case 6:
		object := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}}
		if w.pick("csi", 2) == 0 {
			object.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: fmt.Sprint(w.pick("handle", 3))}
		} else {
			object.Spec.AWSElasticBlockStore = &v1.AWSElasticBlockStoreVolumeSource{VolumeID: fmt.Sprint(w.pick("handle", 3))}
		}
		w.c.Volumes.Set(object)
	case 7:
		w.setCSINode(w.pick("node", 3))
	case 8:
		w.c.VolumeAttachments.Set(&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("a%d", w.pick("attachment", 3))},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "ebs.csi.aws.com", NodeName: fmt.Sprintf("n%d", w.pick("node", 3)),
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
			},
		})
	case 9:
		switch w.pick("less", 3) {
		case 0:
			w.c.VolumeAttachments.Delete("", fmt.Sprintf("a%d", w.pick("attachment", 3)))
		case 1:
			w.c.StorageClasses.Set(&storagev1.StorageClass{
				ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: []string{"ebs.csi.aws.com", "else.example.com"}[w.pick("driver", 2)],
			})
		case 2:
			w.c.Volumes.Delete("", volume)
		}
	}
}

func (w *volumeWorld) setCSINode(i int) {
	w.c.CSINodes.Set(&storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: "ebs.csi.aws.com", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(w.pick("limit", 4)))},
		}}},
	})
}

func (w *volumeWorld) pod() *v1.Pod {
	w.pods++
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(w.pods), UID: types.UID(fmt.Sprint(w.pods))}}
	for i := range 1 + w.pick("volumes", 2) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint(i), VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("c%d", w.pick("claim", 4))}}})
	}
	return pod
}

// compare compares the verdicts of both plugins for a few pods on all nodes, and on copies of the
// nodes without one of their pods.
func (w *volumeWorld) compare() {
	for range 3 {
		p := w.c.Pending(w.pod())
		var anew NodeVolumeLimits
		known, fresh := w.v.Filter(w.c, p), anew.Filter(w.c, p)
		for _, n := range w.c.SortedNodes() {
			if got, want := known.Node(n), fresh.Node(n); verdictOf(got) != verdictOf(want) {
				w.Fatalf("node %s: got %s, want %s", n.Name, verdictOf(got), verdictOf(want))
			}
			if len(n.Pods) == 0 {
				continue
			}
			without := n.Copy(&cluster.Node{})
			without.Take(n.Pods[0])
			if got, want := known.Node(without), (&NodeVolumeLimits{}).Filter(w.c, p).Node(without); verdictOf(got) != verdictOf(want) {
				w.Fatalf("node %s without a pod: got %s, want %s", n.Name, verdictOf(got), verdictOf(want))
			}
		}
	}
}

// TestWhatGoesWhileItIsUsedFreesAPlace verifies that the deletion of a claim or volume still in use
// by a pod on the node wakes pods waiting for the node's limit, and that other deletions do not
// wake them.
func TestWhatGoesWhileItIsUsedFreesAPlace(t *testing.T) {
	claim := func(name, volume string) *v1.PersistentVolumeClaim {
		object := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		object.Spec.VolumeName = volume
		return object
	}
	volume := func(name string) *v1.PersistentVolume {
		object := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		object.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: name}
		return object
	}
	labelled := claim("used", "v-used")
	labelled.Labels = map[string]string{"a": "b"}
	deleted := func(old any) *queue.Event { return &queue.Event{Old: old} }
	leave := func(c *cluster.Cluster) { c.RemovePod("user") }
	for _, x := range []struct {
		name    string
		between func(c *cluster.Cluster) // runs before the event; the plugin then judges another node
		event   *queue.Event
		wakes   bool
	}{
		{"a claim", nil, deleted(claim("used", "v-used")), true},
		{"its volume", nil, deleted(volume("v-used")), true},
		{"a claim that nobody uses", nil, deleted(claim("free", "v-free")), false},
		{"the volume of that", nil, deleted(volume("v-free")), false},
		{"a claim whose pod has left", leave, deleted(claim("used", "v-used")), false},
		{"a claim that changed since", func(c *cluster.Cluster) { c.Claims.Set(labelled) }, deleted(labelled), true},
		{"a claim, after a storage class was added",
			func(c *cluster.Cluster) {
				c.StorageClasses.Set(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
			},
			deleted(claim("used", "v-used")), true},
		{"a claim with a label", nil, &queue.Event{Old: claim("used", "v-used"), New: labelled}, false},
		{"a claim of another volume", nil, &queue.Event{Old: claim("used", "v-used"), New: claim("used", "v-free")}, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := &volumeWorld{c: cluster.New()}
			full, other := w.c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "full"}}), w.c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
			for _, name := range []string{"full", "other"} {
				w.c.CSINodes.Set(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
					Drivers: []storagev1.CSINodeDriver{{Name: "ebs.csi.aws.com", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1))}}},
				}})
			}
			for _, name := range []string{"used", "free", "wanted"} {
				w.c.Claims.Set(claim(name, "v-"+name))
				w.c.Volumes.Set(volume("v-" + name))
			}
			using := func(name, claim, node string) *v1.Pod {
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: node}}
				pod.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
				return pod
			}
			w.c.SetPod(using("user", "used", "full"))
			waiting := w.c.Pending(using("waiting", "wanted", ""))
			if w.v.Filter(w.c, waiting).Node(full) != tooManyVolumes {
				t.Fatal("the node has a place")
			}

			if x.between != nil {
				x.between(w.c)
				w.v.Filter(w.c, waiting).Node(other)
			}
			if got := w.v.countsLess(x.event); got != x.wakes {
				t.Errorf("wakes: %t, want %t", got, x.wakes)
			}
		})
	}
}

func verdictOf(r *Rejection) string {
	switch {
	case r == nil:
		return "ok"
	case r.Err != nil:
		return r.Err.Error()
	}
	return r.Reasons[0]
}
