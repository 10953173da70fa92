// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// matching is a core that matches a volume with the claim of a pod.
type matching struct {
	*Core
	volume *v1.PersistentVolume
	claim  *v1.PersistentVolumeClaim
	pod    *v1.Pod
}

func newMatching(t *testing.T, observer Observer, change func(*v1.PersistentVolumeClaim)) *matching {
	t.Helper()
	late, class := storagev1.VolumeBindingWaitForFirstConsumer, "local"
	m := &matching{
		volume: &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "disk", UID: "disk", ResourceVersion: "7"},
			Spec: v1.PersistentVolumeSpec{
				StorageClassName: class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
				PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/disk"}},
			},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
		},
		claim: &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: "data", UID: "data", ResourceVersion: "8"},
			Spec: v1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
			},
			Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
		},
		pod: aPod("p", "1"),
	}
	change(m.claim)
	m.pod.Namespace = v1.NamespaceDefault
	m.pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: m.claim.Name},
	}}}
	var err error
	if m.Core, err = New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Seed: 1, Observer: observer}); err != nil {
		t.Fatal(err)
	}
	kinds := []Kind{Nodes, Pods, Volumes, Claims, StorageClasses}
	m.Step(begin, Follows{Kinds: kinds})
	for _, kind := range kinds {
		m.Step(begin, Listing{kind})
		m.Step(begin, Listed{kind})
	}
	for _, e := range []Event{
		Led{},
		Seen{StorageClasses, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late,
		}},
		Seen{Nodes, aNode("n", "4")}, Seen{Volumes, m.volume}, Seen{Claims, m.claim}, Seen{Pods, m.pod}, Tick{},
	} {
		m.Step(begin, e)
	}
	return m
}

// nominated completes the write of the nomination, and returns the ticket of the following volume
// write, or 0.
func (m *matching) nominated() Ticket {
	for _, action := range m.Step(begin, Answered{Ticket: 1}) {
		if write, is := action.(WriteVolumes); is {
			return write.Ticket
		}
	}
	return 0
}

// TestAListDoesNotTakeBackWhatWasAssumed verifies that a volume matched with a claim stays assigned
// to the claim if a list shows its previous state while the write is in progress. A newer state of
// the volume takes effect.
func TestAListDoesNotTakeBackWhatWasAssumed(t *testing.T) {
	m := newMatching(t, nil, func(*v1.PersistentVolumeClaim) {})
	taken := func() bool {
		known, _ := m.View().Cluster.Volumes.Get("", m.volume.Name)
		return known.Spec.ClaimRef != nil
	}
	if m.nominated() == 0 || !taken() {
		t.Fatal("the volume is not matched with the claim")
	}
	m.Step(begin, Listing{Volumes})
	m.Step(begin, Seen{Volumes, m.volume.DeepCopy()})
	m.Step(begin, Listed{Volumes})
	if !taken() {
		t.Error("the list gave the volume to others")
	}
	newer := m.volume.DeepCopy()
	newer.ResourceVersion = "9"
	m.Step(begin, Seen{Volumes, newer})
	if taken() {
		t.Error("what the API shows since does not count")
	}
}

// volumeErrors records the errors with volumes.
type volumeErrors struct {
	NoObserver
	stages []string
}

func (v *volumeErrors) VolumesFailed(stage string) { v.stages = append(v.stages, stage) }

// TestErrorsWithVolumesAreCounted verifies that errors with volumes are counted by stage.
func TestErrorsWithVolumesAreCounted(t *testing.T) {
	seen := &volumeErrors{}
	m := newMatching(t, seen, func(*v1.PersistentVolumeClaim) {})
	ticket := m.nominated()
	if len(seen.stages) > 0 {
		t.Fatalf("nothing has failed yet: %q", seen.stages)
	}
	m.Step(begin, Answered{ticket, Outcome{Fault: &Fault{Message: "conflict"}}})
	newMatching(t, seen, func(claim *v1.PersistentVolumeClaim) {
		claim.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Near"}}}
	})
	if want := []string{"bind", "predicate"}; !slices.Equal(seen.stages, want) {
		t.Errorf("got %q, want %q", seen.stages, want)
	}
}

// TestAStaleReadBringsNothingBack verifies that a fetched pod does not replace a newer state shown
// by the watch. A deleted pod stays deleted, and a waiting pod keeps its newer state.
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
