package plugins

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

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
