// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// diskSet holds the disks of a pod for lookup by name, because each pod of a tenant may have
// thousands of disks. The value reports whether the pod writes the disk.
type diskSet map[disk]bool

// disk identifies a disk named in a pod's spec. An RBD image yields one disk per monitor, because
// images with a monitor in common are in the same cluster. Equal values are the same disk.
type disk struct {
	kind                 diskKind
	name, image, monitor string
}

// diskKind separates disks of different kinds with the same name.
type diskKind byte

// The kinds of disks that two pods on a node must not both write. 0 is not a kind.
const (
	gceDisk diskKind = iota + 1
	ebsVolume
	iscsiTarget // portal and LUN do not count
	rbdImage
)

// isExclusive reports whether two pods on a node must not share a volume of this kind, unless both
// only read the volume and the kind allows several readers (eachDisk).
func isExclusive(v *v1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// eachDisk calls f with the names of a volume's disk until f returns false. writes is false for a
// volume compatible with other readers.
func eachDisk(v *v1.Volume, f func(d disk, writes bool) bool) {
	switch {
	case v.GCEPersistentDisk != nil:
		f(disk{kind: gceDisk, name: v.GCEPersistentDisk.PDName}, !v.GCEPersistentDisk.ReadOnly)
	case v.AWSElasticBlockStore != nil: // even two readers conflict
		f(disk{kind: ebsVolume, name: v.AWSElasticBlockStore.VolumeID}, true)
	case v.ISCSI != nil:
		f(disk{kind: iscsiTarget, name: v.ISCSI.IQN}, !v.ISCSI.ReadOnly)
	case v.RBD != nil:
		for _, monitor := range v.RBD.CephMonitors {
			if !f(disk{rbdImage, v.RBD.RBDPool, v.RBD.RBDImage, monitor}, !v.RBD.ReadOnly) {
				return
			}
		}
	}
}

// disksOf returns the disks of some volumes, or nil. A disk counts as written if one of the volumes
// writes it.
func disksOf(volumes []v1.Volume) (set diskSet) {
	for i := range volumes {
		eachDisk(&volumes[i], func(d disk, writes bool) bool {
			if set == nil {
				set = diskSet{}
			}
			set[d] = set[d] || writes
			return true
		})
	}
	return set
}

// conflictWith reports whether one of the volumes is a disk of the set, and the volume or the set
// writes it.
func (s diskSet) conflictWith(volumes []v1.Volume) (conflict bool) {
	for i := 0; i < len(volumes) && !conflict && len(s) > 0; i++ {
		eachDisk(&volumes[i], func(d disk, writes bool) bool {
			written, has := s[d]
			conflict = has && (writes || written)
			return !conflict
		})
	}
	return conflict
}

// ofClasses caches a finding for each class with many volumes, because a preemption judges the same
// pods repeatedly.
type ofClasses struct {
	find func(*cluster.PodClass) bool

	mutex sync.Mutex
	known map[*cluster.PodClass]bool
}

// Pods with at most fewVolumes volumes are examined again instead of cached, because the lock would
// cost more.
const fewVolumes = 8

// isSelected returns the finding for a class. It is safe for concurrent use.
func (o *ofClasses) isSelected(class *cluster.PodClass) bool {
	if len(class.Spec.Volumes) <= fewVolumes {
		return o.find(class)
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	answer, known := o.known[class]
	if !known {
		answer = o.find(class)
		if o.known == nil {
			o.known = map[*cluster.PodClass]bool{}
		}
		o.known[class] = answer
	}
	return answer
}

// anyPod reports whether the finding is true for one of the node's pods.
func (o *ofClasses) anyPod(n *cluster.Node) bool {
	return slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return o.isSelected(p.Class) })
}

// countPods counts the node's pods with a true finding.
func (o *ofClasses) countPods(n *cluster.Node) (count int) {
	for _, p := range n.Pods {
		if o.isSelected(p.Class) {
			count++
		}
	}
	return count
}
