package plugins

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"
	csiplugins "k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// NodeVolumeLimits rejects nodes whose CSI drivers can attach no more volumes, according to the
// CSINode, and nodes without a driver whose CSIDriver says that no pod may go where it is missing.
// Volumes count if pods on the node use them, and if they are attached although no pod uses them
// now.
type NodeVolumeLimits struct {
	// AllowMissing lets pods go where a driver is missing, whatever its CSIDriver says (upstream:
	// without the gate VolumeLimitScaling, which is on by default).
	AllowMissing bool

	// uses caches what the nodes have attached. It is why the plugin has state.
	uses volumeUses
}

// NodeVolumeLimitsArgs are the arguments of NodeVolumeLimits. They stand for a feature gate and are
// in no configuration file.
type NodeVolumeLimitsArgs struct{ AllowMissing bool }

// newNodeVolumeLimits makes the plugin; nil stands for the defaults.
func newNodeVolumeLimits(args *NodeVolumeLimitsArgs) (*NodeVolumeLimits, error) {
	return &NodeVolumeLimits{AllowMissing: args != nil && args.AllowMissing}, nil
}

// The codes of NodeVolumeLimits.
const (
	CodeMaxVolumeCount   = "MaxVolumeCount"
	CodeCSIDriverMissing = "CSIDriverMissing"
)

// tooManyVolumes is not unresolvable: victims take their volumes with them.
var tooManyVolumes = &Rejection{Code: CodeMaxVolumeCount, Reasons: []string{"node(s) exceed max volume count"}}

// attached is a volume as its CSI driver identifies it. A volume that is not provisioned yet has no
// handle, but its claim. Two volumes with the same driver and handle are one, and take one place.
type attached struct {
	driver, handle string
	claim          cluster.Name
}

// attachedSet is a set of them. All values are true.
type attachedSet map[attached]bool

// Name implements [Filter].
func (*NodeVolumeLimits) Name() string { return "NodeVolumeLimits" }

// Reads implements [Filter].
func (*NodeVolumeLimits) Reads() Part { return Identity | Contents | Objects }

// Applies implements [Selective]. Inline volumes of in-tree plugins count where CSI migration turns
// them into a driver's.
func (*NodeVolumeLimits) Applies(_ *cluster.Cluster, p *cluster.Pod) bool {
	return slices.ContainsFunc(p.Spec().Volumes, func(v v1.Volume) bool {
		_, _, claims := claimOf(p, &v)
		return claims || translator.IsInlineMigratable(&v)
	})
}

// Filter implements [Filter]. What the pod needs is found for two kinds of nodes only, so that the
// work does not grow with the number of nodes.
func (v *NodeVolumeLimits) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	if !v.Applies(c, p) {
		return Judge{}
	}
	v.uses.followCluster(c)
	l := &volumeLimits{c: c, uses: &v.uses}
	// Only whether the node has a CSINode matters: without one nothing is left to CSI drivers.
	for i, csiNode := range [2]*storagev1.CSINode{nil, {}} {
		l.wanted[i] = attachedSet{}
		if err := l.wanted[i].addPod(c, csiNode, p, true); err != nil {
			l.rejected[i] = &Rejection{Err: err}
			if missing := (&claimMissing{}); errors.As(err, &missing) {
				l.rejected[i] = &Rejection{Code: CodeClaimNotFound, Reasons: []string{err.Error()}, Unresolvable: true}
			}
		}
		l.counts[i] = l.wanted[i].countByDriver()
		if !v.AllowMissing {
			l.needed[i] = l.wanted[i].neededDrivers(c)
		}
	}
	if c.CSINodes.Len() == 0 && l.rejected[0] == nil && len(l.needed[0]) == 0 {
		return Judge{} // nothing is limited
	}
	return Judge{Node: l.rejectionOn, Surely: l.hasRoomForAll}
}

// volumeLimits is what a pod needs to have attached, on nodes without and with a CSINode, and by
// which drivers that must be installed there, or why that is unknown.
type volumeLimits struct {
	c        *cluster.Cluster
	uses     *volumeUses
	wanted   [2]attachedSet
	counts   [2][]driverCount // of wanted
	needed   [2][]string
	rejected [2]*Rejection
}

// rejectionOn judges one node. The cheap upper bound, as if no volume were used there already, is
// tried first.
func (l *volumeLimits) rejectionOn(n *cluster.Node) *Rejection {
	csiNode, known := l.uses.csiNode(n), 0
	if csiNode != nil {
		known = 1
	}
	wanted := l.wanted[known]
	if l.rejected[known] != nil {
		return l.rejected[known]
	}
	if driver := l.missingDriver(known, csiNode); driver != "" {
		return &Rejection{Code: CodeCSIDriverMissing, Reasons: []string{driver + " CSI driver is not installed on the node"}}
	}
	if csiNode == nil || len(wanted) == 0 || !anyLimit(csiNode) {
		return nil
	}
	use := l.uses.useOn(n, csiNode)
	if use.err != nil {
		return use.err
	}
	for _, all := range l.counts[known] {
		limit, ok := limitOf(csiNode, all.driver)
		if !ok || int64(use.count[all.driver]+all.volumes) <= limit {
			continue
		}
		// Those that are used there already do not count again.
		if more := all.volumes - wanted.countShared(use.present, all.driver); more > 0 && int64(use.count[all.driver]+more) > limit {
			return tooManyVolumes
		}
	}
	return nil
}

// hasRoomForAll reports whether the node can take the pod's volumes even if none of them is used
// there already. Without some of the pods there are no more volumes than with them.
func (l *volumeLimits) hasRoomForAll(n *cluster.Node) bool {
	csiNode, known := l.uses.csiNode(n), 0
	if csiNode != nil {
		known = 1
	}
	if l.rejected[known] != nil || l.missingDriver(known, csiNode) != "" {
		return false
	}
	if csiNode == nil || len(l.wanted[known]) == 0 || !anyLimit(csiNode) {
		return true
	}
	use := l.uses.useOn(n, csiNode)
	if use.err != nil {
		return false
	}
	for _, all := range l.counts[known] {
		if limit, ok := limitOf(csiNode, all.driver); ok && int64(use.count[all.driver]+all.volumes) > limit {
			return false
		}
	}
	return true
}

// driverCount is how many volumes a driver has to attach.
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

// countShared counts the volumes of a driver that two sets have in common.
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

// missingDriver returns the first by name of the drivers that the pod's volumes need and the node
// lacks; "" if it has all whose absence matters.
func (l *volumeLimits) missingDriver(known int, csiNode *storagev1.CSINode) string {
	for _, driver := range l.needed[known] {
		if csiNode == nil || !hasDriver(csiNode, driver) {
			return driver
		}
	}
	return ""
}

// hasDriver reports whether a driver has registered on the node, with a limit or without.
func hasDriver(csiNode *storagev1.CSINode, name string) bool {
	return slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

// neededDrivers lists the drivers of the volumes that must be installed where the pod goes, sorted.
// A driver without a CSIDriver need not be.
func (s attachedSet) neededDrivers(c *cluster.Cluster) (drivers []string) {
	for a := range s {
		if driver, ok := c.CSIDrivers.Get("", a.driver); ok && mustBeInstalled(driver) {
			drivers = append(drivers, a.driver)
		}
	}
	slices.Sort(drivers)
	return slices.Compact(drivers)
}

// mustBeInstalled reports whether pods may go only where the driver has registered. By default they
// may go anywhere.
func mustBeInstalled(driver *storagev1.CSIDriver) bool {
	return driver.Spec.PreventPodSchedulingIfMissing != nil && *driver.Spec.PreventPodSchedulingIfMissing
}

// anyLimit reports whether one of the node's drivers has a limit; without one nothing needs to be
// counted.
func anyLimit(csiNode *storagev1.CSINode) bool {
	return slices.ContainsFunc(csiNode.Spec.Drivers,
		func(d storagev1.CSINodeDriver) bool { return d.Allocatable != nil && d.Allocatable.Count != nil })
}

// limitOf returns how many volumes a driver can attach. The last entry of a driver counts. A count
// of 0 is a limit; no count is none. ok is false where there is no limit.
func limitOf(csiNode *storagev1.CSINode, driver string) (limit int64, ok bool) {
	for i := range csiNode.Spec.Drivers {
		if d := &csiNode.Spec.Drivers[i]; d.Name == driver && d.Allocatable != nil && d.Allocatable.Count != nil {
			limit, ok = int64(*d.Allocatable.Count), true
		}
	}
	return limit, ok
}

// addAttachments adds the volumes attached to a node, except for inline volumes of pods, and
// volumes that are not CSI volumes.
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

// claimMissing is the error for a pending pod whose claim does not exist.
type claimMissing struct{ namespace, name string }

// Error implements error, in upstream's words.
func (e *claimMissing) Error() string {
	return fmt.Sprintf("looking up PVC %s/%s: %s", e.namespace, e.name, claimNotFound(e.name))
}

// addPod adds the volumes of a pod, as they are attached to the node of the CSINode (nil if it has
// none). A missing claim is an error only for the pending pod.
func (s attachedSet) addPod(c *cluster.Cluster, csiNode *storagev1.CSINode, p *cluster.Pod, waits bool) error {
	for i := range p.Spec().Volumes {
		v := &p.Spec().Volumes[i]
		// Inline volumes have no claim.
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
		// The pending pod needs its claim; a placed pod's claim may be gone already, and counts for
		// nothing.
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

// addInline adds a disk that the pod's spec names, if CSI migration leaves it to a CSI driver.
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
		// The library panics on a storage policy, which it looks for where it never is. The policy
		// does not identify the disk.
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

// addClaim adds what a claim stands for: its volume, or the one that will be provisioned for it. A
// volume that no CSI driver serves takes no place.
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

// translateVolume returns the CSI form of a volume of an in-tree plugin; nil if it is not left to a
// driver, or not on a node without a CSINode.
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

// addUnbound adds a claim whose volume is not provisioned yet. Without a storage class it would
// have been bound before.
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

// translator translates in-tree volumes. It has no state.
var translator = csitranslation.New()

// isMigrated reports whether the volumes of an in-tree plugin are left to a CSI driver. The list is
// upstream's.
func isMigrated(plugin string) bool {
	switch plugin {
	case csiplugins.AWSEBSInTreePluginName, csiplugins.GCEPDInTreePluginName, csiplugins.AzureDiskInTreePluginName,
		csiplugins.CinderInTreePluginName, csiplugins.PortworxVolumePluginName:
		return true
	}
	return false
}
