// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestChaosOfVolumes is like TestChaos, but for pods with PersistentVolumeClaims. Some claims are
// for local disks, and some for volumes that a provisioner provisions after the placement, late or
// not at all on the first attempt. The test also verifies that at the end, the volumes of bound
// pods are on the pods' nodes, that a volume belongs to one claim at most, and that the scheduler's
// volumes and claims equal the API server's. It has only a third of the runs, because they take
// longer.
func TestChaosOfVolumes(t *testing.T) {
	for seed := *chaosSeed; seed < *chaosSeed+uint64(max(1, *chaosRuns/3)); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				v := &volumeChaos{chaos: &chaos{world: w, rng: rand.New(rand.NewPCG(seed, 11)), kills: seed%3 == 0}}
				v.run()
			})
		})
	}
}

type volumeChaos struct{ *chaos }

const (
	onDisk      = "on-disk"
	madeOnOrder = "made-on-order"

	selectedNode  = "volume.kubernetes.io/selected-node"
	bindCompleted = "pv.kubernetes.io/bind-completed"
)

func (v *volumeChaos) run() {
	for name, provisioner := range map[string]string{onDisk: "kubernetes.io/no-provisioner", madeOnOrder: "maker.example.com"} {
		v.api.Put(&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		})
	}
	for i := range 12 {
		v.api.Put(aVolume(fmt.Sprintf("disk%d", i), onDisk, fmt.Sprintf("n%d", i)))
	}
	v.resources = []string{"persistentvolumes", "persistentvolumeclaims"}
	v.adorn, v.others, v.more = v.addClaim, v.control, v.judgeVolumes
	v.chaos.run()
}

func aVolume(name, class, node string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: v1.PersistentVolumeSpec{
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: class, PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/"}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
}

// addClaim creates a claim for two of three pods.
func (v *volumeChaos) addClaim(p *v1.Pod) {
	class := []string{"", onDisk, madeOnOrder}[v.n(3)]
	if class == "" {
		return
	}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "of-" + string(p.UID), UID: p.UID + "-claim"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class,
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	v.api.Put(claim)
	p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
	}}}
}

// control acts like upstream's controllers and a provisioner.
func (v *volumeChaos) control() {
	owners := map[string]bool{}
	for _, p := range v.api.Pods() {
		owners["of-"+string(p.UID)] = true
	}
	claims := map[types.UID]*v1.PersistentVolumeClaim{}
	for _, claim := range fakeapi.All(v.api, &v1.PersistentVolumeClaim{}) {
		if !owners[claim.Name] {
			v.api.Delete(claim)
			continue
		}
		claims[claim.UID] = claim
		if claim.Spec.VolumeName == "" && claim.Annotations[selectedNode] != "" {
			v.provision(claim)
		}
	}
	for _, volume := range fakeapi.All(v.api, &v1.PersistentVolume{}) {
		ref := volume.Spec.ClaimRef
		switch {
		case ref == nil:
		case claims[ref.UID] != nil:
			bindTogether(v.api, volume, claims[ref.UID])
		case volume.Spec.StorageClassName == madeOnOrder:
			v.api.Delete(volume)
		default:
			fakeapi.Change(v.api, volume, func(o *v1.PersistentVolume) { o.Spec.ClaimRef, o.Status.Phase = nil, v1.VolumeAvailable })
		}
	}
}

func bindTogether(api *fakeapi.Server, volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) {
	if claim.Spec.VolumeName != "" {
		return
	}
	fakeapi.Change(api, volume, func(o *v1.PersistentVolume) { o.Status.Phase = v1.VolumeBound })
	fakeapi.Change(api, claim, func(o *v1.PersistentVolumeClaim) {
		o.Spec.VolumeName, o.Status.Phase = volume.Name, v1.ClaimBound
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, bindCompleted, "yes")
	})
}

// provision provisions a volume on the node selected by the scheduler, or removes the annotation to
// request another node. It may also do nothing yet.
func (v *volumeChaos) provision(claim *v1.PersistentVolumeClaim) {
	node := claim.Annotations[selectedNode]
	switch v.n(4) {
	case 0: // later
	case 1:
		fakeapi.Change(v.api, claim, func(o *v1.PersistentVolumeClaim) { delete(o.Annotations, selectedNode) })
	default:
		volume := aVolume("made-for-"+string(claim.UID), madeOnOrder, node)
		volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		v.api.Put(volume)
	}
}

// judgeVolumes adds the API server's objects to the cluster of the plain evaluator, and compares
// the scheduler's state with them.
func (v *volumeChaos) judgeVolumes(truth *cluster.Cluster) {
	owner := map[string]string{} // claim by volume
	claims := map[string]*v1.PersistentVolumeClaim{}
	for _, class := range fakeapi.All(v.api, &storagev1.StorageClass{}) {
		truth.Objects.StorageClasses.Set(class)
	}
	for _, volume := range fakeapi.All(v.api, &v1.PersistentVolume{}) {
		truth.Objects.Volumes.Set(volume)
	}
	for _, claim := range fakeapi.All(v.api, &v1.PersistentVolumeClaim{}) {
		truth.Objects.Claims.Set(claim)
		claims[claim.Name] = claim
		if name := claim.Spec.VolumeName; name != "" {
			if owner[name] != "" {
				v.Errorf("volume %s is bound to %s and %s", name, owner[name], claim.Name)
			}
			owner[name] = claim.Name
		}
	}
	for _, p := range v.api.Pods() {
		if len(p.Spec.Volumes) == 0 || p.Spec.NodeName == "" {
			continue
		}
		claim := claims[p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName]
		volume, ok := truth.Objects.Volumes.Get("", claim.Spec.VolumeName)
		if !ok || volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != p.Spec.NodeName {
			v.Errorf("pod %s is on %s, and its claim has the volume %q", p.Name, p.Spec.NodeName, claim.Spec.VolumeName)
		}
	}
	v.do(func() { v.sameObjects(truth) })
}

func (v *volumeChaos) sameObjects(truth *cluster.Cluster) {
	known := &v.s.core.View().Cluster.Objects
	for _, volume := range truth.Objects.Volumes.All() {
		has, _ := known.Volumes.Get("", volume.Name)
		if has == nil || has.ResourceVersion != volume.ResourceVersion || (has.Spec.ClaimRef == nil) != (volume.Spec.ClaimRef == nil) {
			v.Errorf("volume %s is %v, known as %v", volume.Name, volume, has)
		}
	}
	for _, claim := range truth.Objects.Claims.All() {
		has, _ := known.Claims.Get(claim.Namespace, claim.Name)
		if has == nil || has.ResourceVersion != claim.ResourceVersion || has.Spec.VolumeName != claim.Spec.VolumeName || has.Annotations[selectedNode] != claim.Annotations[selectedNode] {
			v.Errorf("claim %s is %v, known as %v", claim.Name, claim, has)
		}
	}
	if known.Volumes.Len() != truth.Objects.Volumes.Len() || known.Claims.Len() != truth.Objects.Claims.Len() {
		v.Errorf("%d volumes and %d claims are known, want %d and %d", known.Volumes.Len(), known.Claims.Len(), truth.Objects.Volumes.Len(), truth.Objects.Claims.Len())
	}
}
