// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	csiDriver     = "csi.example.com"
	ebsDriver     = "ebs.csi.aws.com"
	gceDriver     = "pd.csi.storage.gke.io"
	azureDriver   = "disk.csi.azure.com"
	cinderDriver  = "cinder.csi.openstack.org"
	vsphereDriver = "csi.vsphere.vmware.com"
	gibi          = 1 << 30
	bindComplete  = "pv.kubernetes.io/bind-completed"
	selectedNode  = "volume.kubernetes.io/selected-node"
)

var classNames = []string{"manual", "immediate", "wait", "zonal", "ebs"}

// storageGenerator draws volumes and claims, and the volumes of pods. Some of the claims used by
// pods do not exist.
type storageGenerator struct {
	*dice
	w     *World
	terms *termGenerator

	claims map[string][]string // names by namespace
	single map[string]bool     // claims that only one pod may use
}

func (g *storageGenerator) addStorage() {
	if g.leaning["volumes"] == 0 {
		return
	}
	g.storageClasses()
	g.csiNodes()
	for range g.drawFew(30) {
		g.addVolume()
	}
	for range g.drawBetween(2, 20) {
		g.addClaim(pickOne(g, "default", "default", "team-a"), g.nextName("claim"))
	}
	g.addAttachments()
}

func (g *storageGenerator) storageClasses() {
	provisioner := map[string]string{"manual": "kubernetes.io/no-provisioner", "ebs": "kubernetes.io/aws-ebs"}
	for _, name := range drawSome(g, 0.9, classNames...) {
		class := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: csiDriver,
			VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		}
		if p, ok := provisioner[name]; ok {
			class.Provisioner = p
		}
		switch name {
		case "immediate":
			class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
		case "zonal":
			class.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
				{Key: v1.LabelTopologyZone, Values: drawSome(g, 0.7, "z1", "z2", "z3")}}}}
			if g.withChance(0.3) {
				class.AllowedTopologies[0].MatchLabelExpressions = append(class.AllowedTopologies[0].MatchLabelExpressions,
					v1.TopologySelectorLabelRequirement{Key: v1.LabelTopologyRegion, Values: []string{"r1"}})
			}
			if g.withChance(0.3) {
				class.AllowedTopologies = append(class.AllowedTopologies,
					v1.TopologySelectorTerm{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
						{Key: v1.LabelHostname, Values: []string{pickOne(g, g.w.Nodes...).Name}}}})
			}
		}
		g.w.addObject(class)
	}

	if g.withChance(0.7) {
		g.w.addObject(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDriver}, Spec: storagev1.CSIDriverSpec{
			StorageCapacity:               pickOne(g, nil, ptr.To(true), ptr.To(true), ptr.To(false)),
			PreventPodSchedulingIfMissing: pickOne(g, nil, ptr.To(true), ptr.To(false)),
		}})
	}

	for range g.drawFew(6) {
		g.addCapacity()
	}
}

func (g *storageGenerator) addCapacity() {
	capacity := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "default", Name: g.nextName("capacity")},
		StorageClassName: pickOne(g, "wait", "zonal", "immediate"),
		NodeTopology: pickOne(g, nil, &metav1.LabelSelector{},
			&metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelTopologyZone: pickOne(g, "z1", "z2")}}),
	}
	if g.withChance(0.9) {
		capacity.Capacity = resource.NewQuantity(int64(pickOne(g, 0, 2, 8, 50))*gibi, resource.BinarySI)
	}
	if g.withChance(0.3) {
		capacity.MaximumVolumeSize = resource.NewQuantity(int64(pickOne(g, 0, 2, 8))*gibi, resource.BinarySI)
	}
	if capacity.Capacity == nil { // upstream panics if only the maximum volume size is set
		capacity.MaximumVolumeSize = nil
	}
	g.w.addObject(capacity)
}

func (g *storageGenerator) csiNodes() {
	for _, node := range drawSome(g, 0.85, g.w.Nodes...) {
		object := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
		if g.withChance(0.6) {
			object.Annotations = map[string]string{"storage.alpha.kubernetes.io/migrated-plugins": pickOne(g,
				"kubernetes.io/aws-ebs",
				"kubernetes.io/aws-ebs,kubernetes.io/gce-pd,kubernetes.io/azure-disk,kubernetes.io/cinder,"+
					"kubernetes.io/vsphere-volume", "")}
		}

		for _, driver := range drawSome(g, 0.7, csiDriver, ebsDriver, gceDriver, azureDriver, cinderDriver, vsphereDriver) {
			d := storagev1.CSINodeDriver{Name: driver, NodeID: node.Name, TopologyKeys: []string{v1.LabelTopologyZone}}
			if g.withChance(0.8) {
				d.Allocatable = &storagev1.VolumeNodeResources{}
				if g.withChance(0.9) {
					d.Allocatable.Count = ptr.To(int32(pickOne(g, 0, 1, 2, 3, 10)))
				}
			}
			object.Spec.Drivers = append(object.Spec.Drivers, d)
		}

		g.w.addObject(object)
	}
}

// addVolume draws a persistent volume that is unclaimed or reserved for a claim.
func (g *storageGenerator) addVolume() *v1.PersistentVolume {
	name := g.nextName("volume")
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec: v1.PersistentVolumeSpec{
			// Sizes are unique, because the choice among equal sizes would be random.
			Capacity: v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(int64(pickOne(g, 1, 5, 10))*gibi+
				int64(g.serial)*mebi, resource.BinarySI)},
			AccessModes: pickOne(g, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany}, []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}),
			VolumeMode: ptr.To(v1.PersistentVolumeFilesystem), StorageClassName: pickOne(g, "manual", "manual", "wait",
				"immediate", "", "ebs"),
			PersistentVolumeSource: g.volumeSource(),
		},
		Status: v1.PersistentVolumeStatus{Phase: pickOne(g, v1.VolumeAvailable, v1.VolumeAvailable, v1.VolumeAvailable,
			v1.VolumePending, v1.VolumeReleased)},
	}
	if g.withChance(0.3) {
		pv.Labels["tier"] = pickOne(g, "front", "back")
	}
	if g.withChance(0.25) {
		pv.Labels[pickOne(g, v1.LabelTopologyZone, betaZone)] = pickOne(g, "z1", "z1", "z2", "z1__z2", "z3", "")
	}
	if g.withChance(0.1) {
		pv.Labels[pickOne(g, v1.LabelTopologyRegion, betaRegion)] = pickOne(g, "r1", "r2")
	}
	if g.withChance(0.15) {
		pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	}
	if g.withChance(0.1) {
		pv.Spec.VolumeAttributesClassName = ptr.To(pickOne(g, "fast", "slow"))
	}
	if g.withChance(0.03) {
		deleted := g.nextTime()
		pv.DeletionTimestamp = &deleted
	}
	if g.withChance(0.03) { // use the deprecated annotation instead of the field
		pv.Annotations = map[string]string{v1.BetaStorageClassAnnotation: pv.Spec.StorageClassName}
		pv.Spec.StorageClassName = ""
	}
	if pv.Spec.Local != nil || g.withChance(0.3) {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{pickOne(g,
				v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn,
					Values: []string{pickOne(g, g.w.Nodes...).Name}},
				v1.NodeSelectorRequirement{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn,
					Values: []string{pickOne(g, "z1", "z2")}},
				g.terms.nodeRequirement())},
		}}}}
		if g.withChance(0.15) {
			terms := &pv.Spec.NodeAffinity.Required.NodeSelectorTerms
			*terms = append(*terms, g.terms.nodeTerm(g.withChance(0.3)))
		}
	}
	g.w.addObject(pv)
	return pv
}

func (g *storageGenerator) volumeSource() v1.PersistentVolumeSource {
	id := fmt.Sprintf("disk-%d", g.IntN(4))
	switch g.IntN(13) {
	case 7:
		return v1.PersistentVolumeSource{Cinder: &v1.CinderPersistentVolumeSource{VolumeID: id}}
	case 8:
		return v1.PersistentVolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[store] " + id}}
	case 9:
		return v1.PersistentVolumeSource{RBD: &v1.RBDPersistentVolumeSource{CephMonitors: []string{"a"}, RBDPool: "rbd", RBDImage: id}}
	case 0, 1:
		return v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/mnt"}}
	case 2:
		return v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: id,
			ReadOnly: g.withChance(0.3)}}
	case 3:
		return v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: id, ReadOnly: g.withChance(0.3)}}
	case 4:
		return v1.PersistentVolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DiskName: id, DataDiskURI: "/subscriptions/x/" + id}}
	case 5:
		return v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: id}}
	case 6:
		return v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nfs", Path: "/"}}
	}

	return v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: pickOne(g, csiDriver, csiDriver,
		ebsDriver, gceDriver, "other.example.com"), VolumeHandle: id}}
}

// addClaim draws a claim in one of its possible states.
func (g *storageGenerator) addClaim(namespace, name string) *v1.PersistentVolumeClaim {
	g.serial++
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: pickOne(g, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
				[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}),
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceStorage: *resource.NewQuantity(int64(pickOne(g, 1, 1, 4, 9))*gibi+int64(g.serial)*1024, resource.BinarySI)}},
			StorageClassName: ptr.To(pickOne(g, append(classNames, "missing")...)), VolumeMode: ptr.To(v1.PersistentVolumeFilesystem),
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}

	claim.UID = "uid-" + claimUID(namespace, name)
	if g.withChance(0.1) {
		claim.Spec.VolumeMode = pickOne(g, nil, ptr.To(v1.PersistentVolumeBlock), ptr.To(v1.PersistentVolumeBlock))
	}

	if g.withChance(0.05) {
		claim.Spec.VolumeAttributesClassName = ptr.To(pickOne(g, "fast", "slow", ""))
	}
	switch {
	case g.withChance(0.6):
		g.bindClaim(claim)
	case g.withChance(0.05):
		// Upstream panics when it scores a node for a claim with the annotation and a class with
		// capacities.
		if name := *claim.Spec.StorageClassName; name == "wait" || name == "zonal" {
			break
		}
		claim.Annotations[v1.BetaStorageClassAnnotation], claim.Spec.StorageClassName = *claim.Spec.StorageClassName, nil
	case g.withChance(0.1):
		claim.Spec.StorageClassName = pickOne(g, nil, ptr.To(""))
	}

	if g.withChance(0.15) {
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "front"}}
	}
	if g.withChance(0.08) {
		claim.Annotations[selectedNode] = pickOne(g, pickOne(g, g.w.Nodes...).Name, "unknown-node")
	}

	if g.withChance(0.04) {
		deleted := g.nextTime()
		claim.DeletionTimestamp = &deleted
	}

	if g.withChance(0.03) {
		claim.Status.Phase = v1.ClaimLost
	}
	g.w.addObject(claim)
	g.claims[namespace] = append(g.claims[namespace], name)
	g.single["claim "+namespace+"/"+name] = claim.Spec.AccessModes[0] == v1.ReadWriteOncePod
	return claim
}

// bindClaim binds the claim to a new volume; in some cases incompletely.
func (g *storageGenerator) bindClaim(claim *v1.PersistentVolumeClaim) {
	claim.Annotations[bindComplete] = "yes"
	claim.Status.Phase = v1.ClaimBound
	if g.withChance(0.05) {
		claim.Spec.VolumeName = "gone"
		return
	}
	pv := g.addVolume()
	claim.Spec.VolumeName = pv.Name
	pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	pv.Status.Phase = v1.VolumeBound
	if g.withChance(0.9) {
		pv.Spec.VolumeMode = claim.Spec.VolumeMode
	}
	if g.withChance(0.5) {
		pv.Spec.StorageClassName = ptr.Deref(claim.Spec.StorageClassName, "")
	}
	switch g.IntN(15) {
	case 0: // the volume refers to the claim, but not vice versa
		claim.Spec.VolumeName, claim.Status.Phase = "", v1.ClaimPending
		delete(claim.Annotations, bindComplete)
		pv.Status.Phase = v1.VolumeAvailable
		pv.Spec.StorageClassName = ptr.Deref(claim.Spec.StorageClassName, "")
	case 1: // the volume is chosen, but the binding is not completed
		delete(claim.Annotations, bindComplete)
	case 2:
		pv.Spec.ClaimRef = nil
	}
}

func (g *storageGenerator) addAttachments() {
	volumes := ofKind[*v1.PersistentVolume](g.w)
	for range g.drawFew(10) {
		attachment := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: g.nextName("attachment")},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: pickOne(g, csiDriver, csiDriver, ebsDriver),
				NodeName: pickOne(g, g.w.Nodes...).Name},
		}
		if len(volumes) > 0 && g.withChance(0.9) {
			attachment.Spec.Source.PersistentVolumeName = ptr.To(pickOne(g, volumes...).Name)
		} else {
			attachment.Spec.Source.PersistentVolumeName = ptr.To("gone")
		}
		if g.withChance(0.1) { // attachment of a migrated inline volume
			attachment.Spec.Source = storagev1.VolumeAttachmentSource{
				InlineVolumeSpec: &v1.PersistentVolumeSpec{PersistentVolumeSource: g.volumeSource()},
			}
		}
		g.w.addObject(attachment)
	}
}
