package plugins

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// diskSet has the disks of a pod, for which others look by name: a tenant's pods have room for
// thousands of disks each. Of each it is known whether the pod writes it.
type diskSet map[disk]bool

// disk is one that a pod itself names. An RBD image is one for each of its monitors: the cluster is
// the same if one of them is. Two pods use the same disk if these are equal.
type disk struct {
	kind                 diskKind
	name, image, monitor string
}

// diskKind keeps disks of different kinds with the same name apart.
type diskKind byte

// The kinds whose disks two pods on a node may not both write. 0 is none of them.
const (
	gceDisk diskKind = iota + 1
	ebsVolume
	iscsiTarget // portal and LUN do not count
	rbdImage
)

// isExclusive tells the kinds of volumes that two pods on a node may not both have, unless both
// only read where the kind allows that (eachDisk).
func isExclusive(v *v1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// eachDisk calls f with the names that a volume's disk has, until f returns false. writes is false
// for a volume that goes together with others that only read.
func eachDisk(v *v1.Volume, f func(d disk, writes bool) bool) {
	switch {
	case v.GCEPersistentDisk != nil:
		f(disk{kind: gceDisk, name: v.GCEPersistentDisk.PDName}, !v.GCEPersistentDisk.ReadOnly)
	case v.AWSElasticBlockStore != nil: // two that only read cannot be used at once, either
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

// disksOf returns the disks of some volumes; nil if there is none. A disk counts as written if one
// of the volumes writes it.
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

// conflictWith reports whether one of the volumes is a disk of the set, and they cannot be used at
// once: one of the two sides writes.
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

// ofClasses remembers what was found out of each class that has many volumes: a preemption judges
// the same pods again and again.
type ofClasses struct {
	find func(*cluster.PodClass) bool

	mutex sync.Mutex
	known map[*cluster.PodClass]bool
}

// fewVolumes are looked at again rather than remembered: that is cheaper than the lock.
const fewVolumes = 8

// of returns the answer for a class. It may be called for several nodes at once.
func (o *ofClasses) of(class *cluster.PodClass) bool {
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

// anyPod reports whether the answer is yes for one of the pods on a node, and countPods for how
// many.
func (o *ofClasses) anyPod(n *cluster.Node) bool {
	return slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return o.of(p.Class) })
}

// countPods counts the pods on a node for which the answer is yes.
func (o *ofClasses) countPods(n *cluster.Node) (count int) {
	for _, p := range n.Pods {
		if o.of(p.Class) {
			count++
		}
	}
	return count
}
