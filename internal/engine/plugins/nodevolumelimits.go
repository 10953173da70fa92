// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// NodeVolumeLimits rejects nodes whose CSI drivers can attach no more volumes according to the
// CSINode. It also rejects nodes that lack a CSI driver of the pod's volumes, if that driver's
// CSIDriver object prevents scheduling without it. It counts volumes used by pods on the node, and
// attached volumes even without a current user.
type NodeVolumeLimits struct {
	// AllowMissing lets pods run on nodes without a driver, regardless of the driver's CSIDriver
	// object (upstream: without the gate VolumeLimitScaling, which is on by default).
	AllowMissing bool

	// uses is a cache of the volumes attached to the nodes. It is the plugin's only state.
	uses volumeUses
}

// NodeVolumeLimitsArgs are the arguments of NodeVolumeLimits. They represent a feature gate and
// never occur in a configuration file.
type NodeVolumeLimitsArgs struct{ AllowMissing bool }

// newNodeVolumeLimits makes the plugin; nil args select the defaults.
func newNodeVolumeLimits(args *NodeVolumeLimitsArgs) (*NodeVolumeLimits, error) {
	return &NodeVolumeLimits{AllowMissing: args != nil && args.AllowMissing}, nil
}

// The codes of NodeVolumeLimits.
const (
	CodeMaxVolumeCount   = "MaxVolumeCount"
	CodeCSIDriverMissing = "CSIDriverMissing"
)

// tooManyVolumes is resolvable: victims release their volumes.
var tooManyVolumes = &Rejection{Code: CodeMaxVolumeCount, Reasons: []string{"node(s) exceed max volume count"}}

// Name implements [Filter].
func (*NodeVolumeLimits) Name() string { return "NodeVolumeLimits" }

// Reads implements [Filter].
func (*NodeVolumeLimits) Reads() Part { return Identity | Contents | Objects }

// Applies implements [Selective]. Inline volumes of in-tree plugins are included if CSI migration
// moves them to a driver.
func (*NodeVolumeLimits) Applies(_ *cluster.Cluster, p *cluster.Pod) bool {
	return slices.ContainsFunc(p.Spec().Volumes, func(v v1.Volume) bool {
		_, _, claims := claimOf(p, &v)
		return claims || translator.IsInlineMigratable(&v)
	})
}

// Filter implements [Filter]. It computes the pod's needs only for two kinds of nodes (with and
// without a CSINode), so that the work does not grow with the number of nodes.
func (v *NodeVolumeLimits) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	if !v.Applies(c, p) {
		return Judge{}
	}
	v.uses.followCluster(c)
	l := &volumeLimits{c: c, uses: &v.uses}
	// Only the existence of the node's CSINode matters: without a CSINode, CSI drivers handle no
	// migrated volumes.
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

// volumeLimits holds a pod's volumes to attach and the drivers that must be installed, or the
// reason these could not be determined. The arrays hold the values for nodes without a CSINode, and
// for nodes with one.
type volumeLimits struct {
	c        *cluster.Cluster
	uses     *volumeUses
	wanted   [2]attachedSet
	counts   [2][]driverCount // numbers of wanted volumes
	needed   [2][]string
	rejected [2]*Rejection
}

// rejectionOn judges one node. It first tries a cheap upper bound, which assumes that none of the
// pod's volumes is in use on the node.
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
		// Volumes already used there are not counted again.
		if more := all.volumes - wanted.countShared(use.present, all.driver); more > 0 && int64(use.count[all.driver]+more) > limit {
			return tooManyVolumes
		}
	}
	return nil
}

// hasRoomForAll reports whether the node can take the pod's volumes even if none of them is used
// there already. Removing pods never increases the number of volumes.
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

// missingDriver returns the first missing driver, by name, among the drivers that must be installed
// for the pod's volumes, or "".
func (l *volumeLimits) missingDriver(known int, csiNode *storagev1.CSINode) string {
	for _, driver := range l.needed[known] {
		if csiNode == nil || !hasDriver(csiNode, driver) {
			return driver
		}
	}
	return ""
}

// hasDriver reports whether a driver has registered on the node, with or without a limit.
func hasDriver(csiNode *storagev1.CSINode, name string) bool {
	return slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

// mustBeInstalled reports whether pods are limited to nodes with the driver registered. By default
// they may run anywhere.
func mustBeInstalled(driver *storagev1.CSIDriver) bool {
	return driver.Spec.PreventPodSchedulingIfMissing != nil && *driver.Spec.PreventPodSchedulingIfMissing
}

// anyLimit reports whether one of the node's drivers has a limit; otherwise volumes need no
// counting.
func anyLimit(csiNode *storagev1.CSINode) bool {
	return slices.ContainsFunc(csiNode.Spec.Drivers,
		func(d storagev1.CSINodeDriver) bool { return d.Allocatable != nil && d.Allocatable.Count != nil })
}

// limitOf returns the number of volumes a driver can attach. If a driver has several entries, the
// last one is used. A count of 0 is a limit; a missing count means unlimited, and ok is false.
func limitOf(csiNode *storagev1.CSINode, driver string) (limit int64, ok bool) {
	for i := range csiNode.Spec.Drivers {
		if d := &csiNode.Spec.Drivers[i]; d.Name == driver && d.Allocatable != nil && d.Allocatable.Count != nil {
			limit, ok = int64(*d.Allocatable.Count), true
		}
	}
	return limit, ok
}
