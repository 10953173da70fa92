// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// addSlots, in one world of five, limits the volume slots of a few nodes, and adds placed,
// nominated and pending pods that use volumes and host ports. A node may lack slots, ports or both,
// before or after a preemption, and the message must name the first reason.
func (g *generator) addSlots() {
	if !g.withChance(0.2) {
		return
	}
	for _, ns := range namespaceNames {
		for _, name := range []string{"s1", "s2"} {
			g.slotClaim(ns, name)
		}
	}
	for _, node := range drawSome(g, 0.5, g.w.Nodes[:min(len(g.w.Nodes), 4)]...) {
		g.limitVolumes(node.Name)
		for range g.drawBetween(1, 4) {
			pod := g.slotPod("slot")
			pod.Spec.NodeName = node.Name
			g.pods.dropTakenPorts(pod)
			g.pods.drawStatus(pod)
			g.w.Placed = append(g.w.Placed, pod)
		}
	}
	for range g.drawBetween(0, 2) {
		pod := g.slotPod("guest")
		pod.Spec.Priority = ptr.To(pickOne(g, int32(10), 1000, 2000))
		pod.Status.NominatedNodeName = pickOne(g, g.w.Nodes[:min(len(g.w.Nodes), 4)]...).Name
		g.w.Nominated = append(g.w.Nominated, pod)
	}
	for range g.drawBetween(1, 3) {
		pod := g.slotPod("wait")
		if g.withChance(0.2) {
			pod.Status.NominatedNodeName = pickOne(g, g.w.Nodes[:min(len(g.w.Nodes), 4)]...).Name
		}
		pod.Spec.Priority = ptr.To(pickOne(g, int32(10), 1000, 1000))
		g.w.Pending = append(g.w.Pending, pod)
	}
}

// limitVolumes sets the node's CSINode to one with a limit of volumes.
func (g *generator) limitVolumes(node string) {
	limited := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: csiDriver, NodeID: node, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(g.drawBetween(0, 3)))}},
	}}}
	for i, o := range g.w.Others {
		if c, is := o.(*storagev1.CSINode); is && c.Name == node {
			g.w.Others[i] = runtime.Object(limited)
			return
		}
	}
	g.w.addObject(limited)
}

// slotPod draws a small pod with up to two volumes, most of which no other pod uses, and often a
// host port.
func (g *generator) slotPod(kind string) *v1.Pod {
	pod := g.pods.drawPod(kind)
	pod.Spec.Affinity, pod.Spec.NodeSelector, pod.Spec.TopologySpreadConstraints, pod.Spec.ResourceClaims = nil, nil, nil, nil
	pod.Spec.Volumes, pod.Spec.InitContainers, pod.Spec.Resources = nil, nil, nil
	pod.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	pod.Spec.Containers = []v1.Container{{Name: "main"}}
	if g.withChance(0.6) {
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, HostIP: pickOne(g, "", "", "10.0.0.1")}}
	}
	for i := range g.drawBetween(0, 2) {
		if g.withChance(0.2) {
			name := pickOne(g, "s1", "s2")
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
			continue
		}
		name := fmt.Sprintf("%s-slot-%d", pod.Name, i)
		pv := g.slotClaim(pod.Namespace, name)
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		if kind == "slot" && g.withChance(0.3) { // the volume is also attached to some node, as after the end of another pod
			g.w.addObject(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: g.nextName("attachment")}, Spec: storagev1.VolumeAttachmentSpec{
				Attacher: csiDriver, NodeName: pickOne(g, g.w.Nodes...).Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}}})
		}
	}
	return pod
}

// slotClaim adds a claim bound to a volume of the driver with limits, and returns the volume.
func (g *generator) slotClaim(namespace, name string) *v1.PersistentVolume {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: namespace + name}, Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: namespace + name}},
		Capacity:               size, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name, UID: claimUID(namespace, name)},
	}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: claimUID(namespace, name),
		Annotations: map[string]string{bindComplete: "yes"}},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: namespace + name, AccessModes: pv.Spec.AccessModes, StorageClassName: ptr.To(""),
			Resources: v1.VolumeResourceRequirements{Requests: size}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
	g.w.addObject(pv)
	g.w.addObject(claim)
	return pv
}
