// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	csitranslation "k8s.io/csi-translation-lib"
	csiplugins "k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// attached identifies a volume to its CSI driver. A volume not yet provisioned lacks a handle, and
// is identified by its claim. Volumes with the same driver and handle are the same volume, with a
// single attachment.
type attached struct {
	driver, handle string
	claim          cluster.Name
}

// attachedSet is a set of volumes. All values are true.
type attachedSet map[attached]bool

// driverCount is the number of volumes a driver must attach.
type driverCount struct {
	driver  string
	volumes int
}

func (s attachedSet) countByDriver() (list []driverCount) {
	for a := range s {
		if at := slices.IndexFunc(list, func(d driverCount) bool { return d.driver == a.driver }); at >= 0 {
			list[at].volumes++
		} else {
			list = append(list, driverCount{a.driver, 1})
		}
	}
	return list
}

// countShared counts the volumes of a driver common to two sets.
func (s attachedSet) countShared(other attachedSet, driver string) (shared int) {
	if len(other) < len(s) {
		s, other = other, s
	}
	for a := range s {
		if a.driver == driver && other[a] {
			shared++
		}
	}
	return shared
}

// neededDrivers lists the volumes' drivers that must be installed on the pod's node, sorted. A
// driver without a CSIDriver is optional.
func (s attachedSet) neededDrivers(c *cluster.Cluster) (drivers []string) {
	for a := range s {
		if driver, ok := c.CSIDrivers.Get("", a.driver); ok && mustBeInstalled(driver) {
			drivers = append(drivers, a.driver)
		}
	}
	slices.Sort(drivers)
	return slices.Compact(drivers)
}

// addAttachments adds the volumes attached to a node, except pods' inline volumes and non-CSI
// volumes.
func (s attachedSet) addAttachments(c *cluster.Cluster, attachments map[string]*storagev1.VolumeAttachment) {
	for _, a := range attachments {
		name := a.Spec.Source.PersistentVolumeName
		if a.Spec.Attacher == "" || name == nil {
			continue
		}
		if volume, ok := c.Volumes.Get("", *name); ok && volume.Spec.CSI != nil {
			s[attached{driver: a.Spec.Attacher, handle: volume.Spec.CSI.VolumeHandle}] = true
		}
	}
}

// claimMissing is the error for a pending pod with a missing claim.
type claimMissing struct{ namespace, name string }

// Error implements error, in upstream's words.
func (e *claimMissing) Error() string {
	return fmt.Sprintf("looking up PVC %s/%s: %s", e.namespace, e.name, claimNotFound(e.name))
}

// addPod adds the volumes of a pod, in the form in which they are attached to a node. csiNode is
// the CSINode of this node, or nil. A missing claim is an error only for the pending pod (waits).
func (s attachedSet) addPod(c *cluster.Cluster, csiNode *storagev1.CSINode, p *cluster.Pod, waits bool) error {
	for i := range p.Spec().Volumes {
		v := &p.Spec().Volumes[i]
		// Inline volumes do not have a claim.
		name, isEphemeral, ok := claimOf(p, v)
		if !ok {
			if err := s.addInline(csiNode, p, v); err != nil {
				return err
			}
			continue
		}
		if name == "" {
			return errors.New("PersistentVolumeClaim had no name")
		}
		claim, ok := c.Claims.Get(p.Namespace(), name)
		// The pending pod needs its claim; a placed pod's claim may already be deleted, and then
		// does not count.
		if !ok && waits {
			return &claimMissing{p.Namespace(), name}
		}
		if !ok {
			continue
		}
		if isEphemeral {
			if err := madeFor(p, claim); err != nil {
				return err
			}
		}
		s.addClaim(c, csiNode, claim)
	}

	return nil
}

// addInline adds a disk named in the pod's spec, if CSI migration moves it to a CSI driver.
func (s attachedSet) addInline(csiNode *storagev1.CSINode, p *cluster.Pod, v *v1.Volume) error {
	if !translator.IsInlineMigratable(v) {
		return nil
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(nil, v)
	if err != nil {
		return fmt.Errorf("looking up provisioner name for volume %s: %w", v.Name, err)
	}
	if csiNode == nil || !isMigrated(plugin) {
		return nil
	}
	if v.VsphereVolume != nil && v.VsphereVolume.StoragePolicyName != "" {
		// The library panics on a storage policy in an inline volume. The copy omits the policy,
		// which does not identify the disk.
		disk := v1.Volume{Name: v.Name, VolumeSource: v1.VolumeSource{VsphereVolume: v.VsphereVolume.DeepCopy()}}
		disk.VsphereVolume.StoragePolicyName = ""
		v = &disk
	}
	volume, err := translator.TranslateInTreeInlineVolumeToCSI(klog.Logger{}, v, p.Namespace())
	if err != nil {
		return fmt.Errorf("converting volume(%s) from inline to csi: %w", v.Name, err)
	}
	driver, err := translator.GetCSINameFromInTreeName(plugin)
	if err != nil {
		return fmt.Errorf("looking up CSI driver name for provisioner %s: %w", plugin, err)
	}
	if volume.Spec.CSI != nil {
		s[attached{driver: driver, handle: volume.Spec.CSI.VolumeHandle}] = true
	}
	return nil
}

// addClaim adds the volume of a claim, existing or to be provisioned. A volume without a CSI driver
// takes no attachment.
func (s attachedSet) addClaim(c *cluster.Cluster, csiNode *storagev1.CSINode, claim *v1.PersistentVolumeClaim) {
	volume, ok := c.Volumes.Get("", claim.Spec.VolumeName)
	if !ok {
		s.addUnbound(c, csiNode, claim)
		return
	}
	source := volume.Spec.CSI
	if source == nil {
		source = translateVolume(csiNode, volume)
	}
	if source != nil && source.Driver != "" && source.VolumeHandle != "" {
		s[attached{driver: source.Driver, handle: source.VolumeHandle}] = true
	}
}

// translateVolume returns the CSI form of a volume of an in-tree plugin, or nil if no CSI driver
// handles it, for example on a node without a CSINode.
func translateVolume(csiNode *storagev1.CSINode, volume *v1.PersistentVolume) *v1.CSIPersistentVolumeSource {
	if csiNode == nil || !translator.IsPVMigratable(volume) {
		return nil
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(volume, nil)
	if err != nil || !isMigrated(plugin) {
		return nil
	}
	volume, err = translator.TranslateInTreePVToCSI(klog.Logger{}, volume)
	if err != nil {
		return nil
	}
	return volume.Spec.CSI
}

// addUnbound adds a claim with a volume yet to be provisioned. It ignores a claim without an
// existing storage class: such a claim does not wait for its pod, and must be bound before the pod
// is placed.
func (s attachedSet) addUnbound(c *cluster.Cluster, csiNode *storagev1.CSINode, claim *v1.PersistentVolumeClaim) {
	class, ok := c.StorageClasses.Get("", claimClass(claim))
	if !ok {
		return
	}
	driver := class.Provisioner
	if translator.IsMigratableIntreePluginByName(driver) {
		if csiNode == nil || !isMigrated(driver) {
			return
		}
		driver, _ = translator.GetCSINameFromInTreeName(driver)
	}
	if driver != "" {
		s[attached{driver: driver, claim: cluster.Name{Namespace: claim.Namespace, Name: claim.Name}}] = true
	}
}

// translator translates in-tree volumes. It is stateless.
var translator = csitranslation.New()

// isMigrated reports whether a CSI driver handles the volumes of an in-tree plugin. The list is
// upstream's.
func isMigrated(plugin string) bool {
	switch plugin {
	case csiplugins.AWSEBSInTreePluginName, csiplugins.GCEPDInTreePluginName, csiplugins.AzureDiskInTreePluginName,
		csiplugins.CinderInTreePluginName, csiplugins.PortworxVolumePluginName:
		return true
	}
	return false
}

// Interests implements Requeuer. The plugin has three reasons to reject a node: the limit reached,
// a missing driver, or a missing claim of the pod.
func (v *NodeVolumeLimits) Interests(setting Setting) []queue.Interest {
	countsLess := func(_ *queue.Item, e *queue.Event) bool { return v.countsLess(e) }
	fewerVolumes := everyoneUnless(func(e *queue.Event) bool { return !v.countsLess(e) })
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add}, // the CSINode with the node's limits may have been added before the node
		{Resource: queue.CSINode, Action: queue.Add | queue.Delete},
		{Resource: queue.CSINode, Action: queue.Update, Hint: limitGrew},
		{Resource: queue.CSIDriver, Action: queue.Update | queue.Delete, Hint: driverNotNeeded},
		{Resource: queue.Pod, Action: queue.Delete, Hint: func(_ *queue.Item, e *queue.Event) bool {
			return usedVolumes(e, isAttachable)
		}, Narrowing: everyoneUnless(func(e *queue.Event) bool { return !usedVolumes(e, isAttachable) })},
		{Resource: queue.Claim, Action: queue.Add | queue.Update, Hint: ofClaim, PerPod: true, Narrowing: setting.byClaims()},
		{Resource: queue.Claim, Action: queue.Update | queue.Delete, Hint: countsLess, Narrowing: fewerVolumes},
		{Resource: queue.Volume, Action: queue.Delete, Hint: countsLess, Narrowing: fewerVolumes},
		{Resource: queue.VolumeAttachment, Action: queue.Delete, Hint: func(item *queue.Item, _ *queue.Event) bool {
			return slices.ContainsFunc(item.Class.Spec.Volumes, isAttachable)
		}},
	}
}

// usedVolumes reports whether a pod with a volume for which match returns true has left its node.
func usedVolumes(e *queue.Event, match func(v1.Volume) bool) bool {
	return e.PodBefore != nil && slices.ContainsFunc(e.PodBefore.Class.Spec.Volumes, match)
}

// countsLess reports whether nodes may use fewer volumes of a driver without the departure of a
// pod: a claim or volume in use was deleted and no longer counts, or the claim now has another
// volume or class. Finalizers prevent such deletions unless they are removed by force.
// kube-scheduler misses such events.
func (v *NodeVolumeLimits) countsLess(e *queue.Event) bool {
	is, changes := e.New.(*v1.PersistentVolumeClaim)
	was, known := e.Old.(metav1.Object)
	if claim, ok := was.(*v1.PersistentVolumeClaim); ok && changes {
		known = claim.Spec.VolumeName != is.Spec.VolumeName || claimClass(claim) != claimClass(is)
	}
	return known && v.uses.isUsed(cluster.Name{Namespace: was.GetNamespace(), Name: was.GetName()})
}

// isAttachable is false for volumes available on every node without attaching anything.
func isAttachable(v v1.Volume) bool {
	return v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.EmptyDir == nil && v.DownwardAPI == nil && v.HostPath == nil
}

// driverNotNeeded reports whether pods with a driver's volumes may now run on nodes without the
// driver, because its CSIDriver no longer requires the driver there or was deleted.
func driverNotNeeded(_ *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*storagev1.CSIDriver)
	is, isNew := e.New.(*storagev1.CSIDriver)
	return !isOld || mustBeInstalled(was) && !(isNew && mustBeInstalled(is))
}

// limitGrew reports whether a node's drivers can attach more volumes, or include a new driver,
// whose absence may have been the reason for a rejection. kube-scheduler misses a change to an
// unlimited driver.
func limitGrew(_ *queue.Item, e *queue.Event) bool {
	was, isOld := e.Old.(*storagev1.CSINode)
	is, isNew := e.New.(*storagev1.CSINode)
	if !isOld || !isNew {
		return true
	}
	// Limits before the event; entries remaining at the end belong to removed drivers.
	limits := map[string]int32{}
	for _, d := range was.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = *d.Allocatable.Count
		}
	}
	for _, d := range is.Spec.Drivers {
		limit, limited := limits[d.Name]
		delete(limits, d.Name)
		switch {
		case !hasDriver(was, d.Name):
			return true
		case d.Allocatable == nil || d.Allocatable.Count == nil:
			if limited {
				return true
			}
		case limited && *d.Allocatable.Count > limit:
			return true
		}
	}
	return len(limits) > 0 // a removed driver counts as unlimited
}

// Wakes implements Waker.
func (*NodeVolumeLimits) Wakes() []string {
	return []string{"a node or CSINode is added or changes", "a pod leaves its node", "a volume is detached", "a CSI driver is installed",
		"a claim or volume that a pod on a node uses is deleted"}
}

// Fixes implements Fixer.
func (*NodeVolumeLimits) Fixes() []Fix { return []Fix{ProvideVolumes, FreeAttachment} }
