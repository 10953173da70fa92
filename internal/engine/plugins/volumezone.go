// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// VolumeZone keeps pods on nodes in the zones and regions named by the labels of their bound
// volumes. It only reads volumes used through a claim, excluding the claims of ephemeral volumes.
// Volumes of CSI drivers have node affinity, handled by VolumeBinding, instead of such labels.
type VolumeZone struct{}

// Codes of VolumeZone. The codes for missing objects are shared by the volume plugins.
const (
	CodeVolumeZoneMismatch   = "VolumeZoneMismatch"
	CodeClaimUnbound         = "ClaimUnbound"
	CodeClaimNotFound        = "ClaimNotFound"
	CodeVolumeNotFound       = "VolumeNotFound"
	CodeStorageClassNotFound = "StorageClassNotFound"
	CodeStorageClassNoMode   = "StorageClassWithoutBindingMode"
)

// zoneMismatch is shared by all judges.
var zoneMismatch = &Rejection{
	Code: CodeVolumeZoneMismatch, Reasons: []string{"node(s) had no available volume zone"}, Unresolvable: true,
}

// zoneLabels are read in this order. The first two are the labels of volumes before Kubernetes
// 1.17.
var zoneLabels = []string{v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion, v1.LabelTopologyZone, v1.LabelTopologyRegion}

// stableLabel maps a label to its successor.
var stableLabel = map[string]string{
	v1.LabelFailureDomainBetaZone: v1.LabelTopologyZone, v1.LabelFailureDomainBetaRegion: v1.LabelTopologyRegion,
}

// volumeZones are the zones or regions that a volume can be reached from, as values of a node
// label. A regional disk has several.
type volumeZones struct {
	label  string
	values sets.Set[string]
}

// Name implements [Filter].
func (VolumeZone) Name() string { return "VolumeZone" }

// Reads implements [Filter].
func (VolumeZone) Reads() Part { return Labels | Objects }

// Applies implements [Selective].
func (VolumeZone) Applies(_ *cluster.Cluster, p *cluster.Pod) bool {
	return slices.ContainsFunc(p.Spec().Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil })
}

// Filter implements [Filter]. It determines the zones once per pod, and only compares labels for
// each node.
func (VolumeZone) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	var zones []volumeZones
	for i := range p.Spec().Volumes {
		source := p.Spec().Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		volume, rejection := boundVolume(c, p.Namespace(), source.ClaimName)
		if rejection != nil {
			return Judge{All: rejection}
		}
		if volume != nil {
			zones = append(zones, zonesOf(volume)...)
		}
	}

	if len(zones) == 0 {
		return Judge{}
	}
	return Judge{Node: func(n *cluster.Node) *Rejection {
		if !inAnyZone(n) { // a cluster of a single zone need not label its nodes
			return nil
		}
		for _, z := range zones {
			if !z.hasNode(n) {
				return zoneMismatch
			}
		}
		return nil
	}}
}

// boundVolume finds the volume of a claim. Both results are nil for claims that receive their
// volume together with the node. Any other claim without a volume rejects the pod.
func boundVolume(c *cluster.Cluster, namespace, name string) (*v1.PersistentVolume, *Rejection) {
	reject := func(code, reason string) (*v1.PersistentVolume, *Rejection) {
		return nil, &Rejection{Code: code, Reasons: []string{reason}, Unresolvable: true}
	}
	if name == "" {
		return reject(CodeClaimNotFound, "PersistentVolumeClaim had no name")
	}

	claim, ok := c.Claims.Get(namespace, name)
	if !ok {
		return reject(CodeClaimNotFound, claimNotFound(name))
	}
	// The claim's volume counts even before binding is complete.
	if claim.Spec.VolumeName != "" {
		volume, ok := c.Volumes.Get("", claim.Spec.VolumeName)
		if !ok {
			return reject(CodeVolumeNotFound, volumeNotFound(claim.Spec.VolumeName))
		}
		return volume, nil
	}

	className := claimClass(claim)
	if className == "" {
		return reject(CodeClaimUnbound, "PersistentVolumeClaim had no pv name and storageClass name")
	}

	class, ok := c.StorageClasses.Get("", className)
	switch {
	case !ok:
		return reject(CodeStorageClassNotFound, fmt.Sprintf("storageclass.storage.k8s.io %q not found", className))
	case class.VolumeBindingMode == nil:
		return reject(CodeStorageClassNoMode, fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", className))
	case *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return reject(CodeClaimUnbound, "PersistentVolume had no name")
	}

	return nil, nil
}

// zonesOf reads a volume's labels. Several values in one label are separated by two underscores:
// "a__b" is zones a and b. Like upstream it skips unreadable labels.
func zonesOf(volume *v1.PersistentVolume) (zones []volumeZones) {
	for _, label := range zoneLabels {
		value, ok := volume.Labels[label]
		if !ok {
			continue
		}
		values := sets.New[string]()
		for _, part := range strings.Split(value, "__") {
			values.Insert(strings.TrimSpace(part))
		}
		if !values.Has("") {
			zones = append(zones, volumeZones{label, values})
		}
	}
	return zones
}

// inAnyZone reports whether the node has any label of a zone or region.
func inAnyZone(n *cluster.Node) bool { return slices.ContainsFunc(zoneLabels, n.Has) }

// hasNode reports whether the node is in one of the zones. As in upstream, a volume with the old
// label matches a node with the new label, but a volume with the new label does not match a node
// with the old label.
func (z *volumeZones) hasNode(n *cluster.Node) bool {
	value, ok := n.Lookup(z.label)
	if stable, old := stableLabel[z.label]; !ok && old {
		value, ok = n.Lookup(stable)
	}
	return ok && z.values.Has(value)
}

// isZoneLabel filters events: changes of other labels do not matter here.
func isZoneLabel(key string) bool { return slices.Contains(zoneLabels, key) }

// Interests implements Requeuer. Claims and volumes count for two reasons: the pod was rejected as
// a whole because of a missing claim or volume, or the volume is in the wrong zone and another
// volume may be bound.
func (VolumeZone) Interests(setting Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel, Hint: setting.nodeNowServes, PerPod: true,
			Narrowing: byVolumeKeys(isZoneLabel)},
		{Resource: queue.Claim, Action: queue.Add | queue.Update, Hint: ofClaim, PerPod: true, Narrowing: setting.byClaims()},
		{Resource: queue.Volume, Action: queue.Add | queue.Update, Hint: setting.ofVolumeZone, PerPod: true, Narrowing: setting.byClaims()},
		{Resource: queue.StorageClass, Action: queue.Add | queue.Update, Hint: setting.ofStorageClass, PerPod: true},
	}
}

// Wakes implements Waker.
func (VolumeZone) Wakes() []string {
	return []string{"a claim, volume or storage class is added or changes", "a node is added or changes its labels"}
}

// Fixes implements Fixer.
func (VolumeZone) Fixes() []Fix { return []Fix{ProvideVolumes, MoveVolumes} }

// Shares implements Sharer: the volume plugins reject pods because of the same claims.
func (VolumeZone) Shares(*cluster.Pod, *cluster.Node) (plugin string, own bool) {
	return (*VolumeBinding)(nil).Name(), true
}
