package cycle_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAListDoesNotTakeBackWhatWasAssumed: a volume that was matched with a claim, and is being
// written, is listed again as it was before. It still is the claim's. A newer state of it counts.
func TestAListDoesNotTakeBackWhatWasAssumed(t *testing.T) {
	kinds := []Kind{Nodes, Pods, Volumes, Claims, StorageClasses}
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	late, class := storagev1.VolumeBindingWaitForFirstConsumer, "local"
	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk", UID: "disk", ResourceVersion: "7"},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/disk"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: "data", UID: "data", ResourceVersion: "8"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	pod := aPod("p", "1")
	pod.Namespace = v1.NamespaceDefault
	pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
	}}}
	core.Step(begin, Follows{Kinds: kinds})
	for _, kind := range kinds {
		core.Step(begin, Listing{kind})
		core.Step(begin, Listed{kind})
	}
	core.Step(begin, Led{})
	core.Step(begin, Seen{StorageClasses, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late,
	}})
	core.Step(begin, Seen{Nodes, aNode("n", "4")})
	core.Step(begin, Seen{Volumes, volume})
	core.Step(begin, Seen{Claims, claim})
	core.Step(begin, Seen{Pods, pod})
	written := false
	core.Step(begin, Tick{})
	for _, action := range core.Step(begin, Answered{Ticket: 1}) { // the nomination
		_, writes := action.(WriteVolumes)
		written = written || writes
	}
	taken := func() bool {
		known, _ := core.View().Cluster.Volumes.Get("", volume.Name)
		return known.Spec.ClaimRef != nil
	}
	if !written || !taken() {
		t.Fatal("the volume is not matched with the claim")
	}
	core.Step(begin, Listing{Volumes})
	core.Step(begin, Seen{Volumes, volume.DeepCopy()})
	core.Step(begin, Listed{Volumes})
	if !taken() {
		t.Error("the list gave the volume to others")
	}
	newer := volume.DeepCopy()
	newer.ResourceVersion = "9"
	core.Step(begin, Seen{Volumes, newer})
	if taken() {
		t.Error("what the API shows since does not count")
	}
}

// TestAStaleReadBringsNothingBack: a pod that was fetched may be older than what the watch has
// shown since. One that is gone stays gone, and one that waits is not what it was before.
func TestAStaleReadBringsNothingBack(t *testing.T) {
	w := newWorld(1, false, func() []Profile { return []Profile{{Profile: plugins.Default()}} })
	old := aPod("gone", "1")
	w.core.Step(w.now, Seen{Pods, old.DeepCopy()})
	w.core.Step(w.now, Gone{Pods, old.DeepCopy()})
	w.core.Step(w.now, Read{old.DeepCopy()})
	if n := len(w.core.View().Queue.Sorted()); n != 0 {
		t.Errorf("%d pods are to be scheduled, which were deleted", n)
	}
	waits := aPod("waits", "1")
	now := waits.DeepCopy()
	now.Labels = map[string]string{"app": "new"}
	w.core.Step(w.now, Seen{Pods, now})
	w.core.Step(w.now, Read{waits})
	if item := w.core.View().Queue.Get(waits.UID); item == nil || item.Pod.Labels["app"] != "new" {
		t.Errorf("what a read shows counts more than the watch: %+v", item)
	}
}
