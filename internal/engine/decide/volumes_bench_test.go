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

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// BenchmarkVolumes measures pods with one bound volume each on 500 nodes with a limit of 39
// volumes. The objects match scheduler_perf's SchedulingCSIPVs and SchedulingMigratedInTreePVs.
// Claim and volume are created together with their pod.
func BenchmarkVolumes(b *testing.B) {
	for _, mode := range []string{"csi", "migrated"} {
		b.Run(mode, func(b *testing.B) {
			var c *cluster.Cluster
			var d *Decider
			for i := 0; b.Loop(); i++ {
				if i%10_000 == 0 {
					b.StopTimer()
					c = volumeCluster()
					d = New(c, plugins.Default(), 1)
					for j := range 2500 {
						placeWithVolume(b, d, -1-j, mode)
					}
					b.StartTimer()
				}
				placeWithVolume(b, d, i, mode)
			}
		})
	}
}

func volumeCluster() *cluster.Cluster {
	c := benchCluster(500, false)
	for _, n := range c.Nodes {
		c.CSINodes.Set(&storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: map[string]string{
				v1.MigratedPluginsAnnotationKey: "kubernetes.io/aws-ebs,kubernetes.io/gce-pd",
			}},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: "ebs.csi.aws.com", NodeID: n.Name, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(39))},
			}}},
		})
	}
	return c
}

func placeWithVolume(b *testing.B, d *Decider, i int, mode string) {
	name := fmt.Sprintf("volume-%d", i)
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		ClaimRef: &v1.ObjectReference{Namespace: "default", Name: name},
	}}
	if mode == "csi" {
		volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: name}
	} else {
		volume.Spec.AWSElasticBlockStore = &v1.AWSElasticBlockStoreVolumeSource{VolumeID: name}
	}
	d.c.Volumes.Set(volume)
	d.c.Claims.Set(&v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: volume.Spec.AccessModes},
	})
	pod := benchPod(0, "plain")
	pod.Name, pod.UID = name, types.UID(name)
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	p := d.c.Pending(pod)
	decision := d.Decide(p)
	if decision.Node == nil {
		b.Fatalf("pod %d: no node", i)
	}
	d.c.Place(p, decision.Node)
}
