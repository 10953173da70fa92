// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func claimUID(namespace, name string) types.UID { return types.UID(namespace + "-" + name) }

func (g *storageGenerator) podVolumes(pod *v1.Pod) {
	for g.hasLeaning("volumes") && len(pod.Spec.Volumes) < 4 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, g.podVolume(pod, fmt.Sprintf("v%d", len(pod.Spec.Volumes))))
	}
	if g.withChance(0.2) { // these volumes do not affect scheduling
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}},
			v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	}
	if g.hasLeaning("images") && g.withChance(0.2) {
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			v1.Volume{Name: "model", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: pickOne(g, imageNames...)}}})
	}
}

func (g *storageGenerator) podVolume(pod *v1.Pod, name string) v1.Volume {
	id := fmt.Sprintf("disk-%d", g.IntN(4))
	v := v1.Volume{Name: name}
	switch g.IntN(14) {
	case 0:
		v.AWSElasticBlockStore = &v1.AWSElasticBlockStoreVolumeSource{VolumeID: id, ReadOnly: g.withChance(0.3)}
	case 1:
		v.GCEPersistentDisk = &v1.GCEPersistentDiskVolumeSource{PDName: id, ReadOnly: g.withChance(0.5)}
	case 2:
		v.ISCSI = &v1.ISCSIVolumeSource{TargetPortal: pickOne(g, "10.0.0.1", "10.0.0.2"), IQN: id, Lun: int32(g.IntN(2)),
			ReadOnly: g.withChance(0.5)}
	case 3:
		v.RBD = &v1.RBDVolumeSource{CephMonitors: drawSome(g, 0.6, "a", "b"), RBDPool: pickOne(g, "rbd", "other"),
			RBDImage: id, ReadOnly: g.withChance(0.5)}
	case 4:
		v.AzureDisk = &v1.AzureDiskVolumeSource{DiskName: id, DataDiskURI: "/subscriptions/x/" + id}
	case 5:
		v.CSI = &v1.CSIVolumeSource{Driver: csiDriver}
	case 6, 7:
		v.Ephemeral = &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{}}
		g.ephemeralClaim(pod, name)
	default:
		v.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: g.claimName(pod.Namespace), ReadOnly: g.withChance(0.2)}
	}

	return v
}

func (g *storageGenerator) claimName(namespace string) string {
	names := g.claims[namespace]
	if len(names) == 0 || g.withChance(0.03) {
		return "gone"
	}
	return pickOne(g, names...)
}

// ephemeralClaim draws the claim of a pod's ephemeral volume. In some cases the claim does not
// exist, or belongs to another pod.
func (g *storageGenerator) ephemeralClaim(pod *v1.Pod, volume string) {
	if g.withChance(0.1) {
		return
	}
	claim := g.addClaim(pod.Namespace, pod.Name+"-"+volume)
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	if g.withChance(0.9) {
		yes := true
		ref.Controller = &yes
	}
	if g.withChance(0.1) {
		ref.UID = "uid-other"
	}
	claim.OwnerReferences = []metav1.OwnerReference{ref}
}
