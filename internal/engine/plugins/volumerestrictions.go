package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// VolumeRestrictions keeps pods from using at once what only one can use: disks that the pod itself
// names, on the same node, and claims with the access mode ReadWriteOncePod, anywhere.
type VolumeRestrictions struct{}

// Codes of VolumeRestrictions.
const (
	CodeDiskConflict         = "DiskConflict"
	CodeReadWriteOncePodUsed = "ReadWriteOncePodClaimInUse"
)

var (
	diskConflict         = &Rejection{Code: CodeDiskConflict, Reasons: []string{"node(s) had no available disk"}}
	readWriteOncePodUsed = &Rejection{
		Code: CodeReadWriteOncePodUsed,
		Reasons: []string{"node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already " +
			"in-use by another pod"},
	}
)

// Name implements [Filter].
func (VolumeRestrictions) Name() string { return "VolumeRestrictions" }

// Reads implements [Filter].
func (VolumeRestrictions) Reads() Part { return Contents | Objects }

// Applies implements [Selective].
func (VolumeRestrictions) Applies(_ *cluster.Cluster, p *cluster.Pod) bool {
	return slices.ContainsFunc(p.Spec().Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || isExclusive(&v) })
}

// Filter implements [Filter].
func (VolumeRestrictions) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	var disks []*v1.Volume
	alone := sets.New[string]() // claims that one pod can use
	for i := range p.Spec().Volumes {
		v := &p.Spec().Volumes[i]
		if isExclusive(v) {
			disks = append(disks, v)
		}
		if v.PersistentVolumeClaim == nil {
			continue
		}
		name := v.PersistentVolumeClaim.ClaimName
		claim, ok := c.Claims.Get(p.Namespace(), name)
		if !ok {
			return Judge{All: &Rejection{Code: CodeClaimNotFound, Reasons: []string{claimNotFound(name)}, Unresolvable: true}}
		}
		if slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) {
			alone.Insert(name)
		}
	}
	if len(disks)+len(alone) == 0 {
		return Judge{}
	}
	uses := usersOf(p.Namespace(), alone)
	used := map[int32]int{} // by node
	total := 0
	if len(alone) > 0 {
		for _, n := range c.Nodes {
			if n != nil {
				if users := uses(n); users > 0 {
					used[n.Index] = users
					total += users
				}
			}
		}
	}
	return Judge{Node: func(n *cluster.Node) *Rejection {
		switch {
		case anyConflicts(n, disks):
			return diskConflict
		case total > used[n.Index], len(alone) > 0 && uses(n) > 0:
			return readWriteOncePodUsed
		}
		return nil
	}}
}

// usersOf counts the pods on a node that use one of the claims.
func usersOf(namespace string, claims sets.Set[string]) func(n *cluster.Node) int {
	return func(n *cluster.Node) (users int) {
		for _, p := range n.Pods {
			if p.Namespace() == namespace && slices.ContainsFunc(p.Spec().Volumes, func(v v1.Volume) bool {
				return v.PersistentVolumeClaim != nil && claims.Has(v.PersistentVolumeClaim.ClaimName)
			}) {
				users++
			}
		}
		return users
	}
}

// isExclusive tells the kinds of volumes that two pods on a node may not both have.
func isExclusive(v *v1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

func anyConflicts(n *cluster.Node, disks []*v1.Volume) bool {
	for _, disk := range disks {
		for _, p := range n.Pods {
			for i := range p.Class.Spec.Volumes {
				if disksConflict(disk, &p.Class.Spec.Volumes[i]) {
					return true
				}
			}
		}
	}
	return false
}

// disksConflict reports whether two volumes are the same disk and cannot be used at once. Disks
// that both only read can; EBS volumes cannot even then.
func disksConflict(a, b *v1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		a, b := a.GCEPersistentDisk, b.GCEPersistentDisk
		return a.PDName == b.PDName && !(a.ReadOnly && b.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil: // portal and LUN do not count
		a, b := a.ISCSI, b.ISCSI
		return a.IQN == b.IQN && !(a.ReadOnly && b.ReadOnly)
	case a.RBD != nil && b.RBD != nil: // the same cluster, if it has one monitor in common
		a, b := a.RBD, b.RBD
		return a.RBDPool == b.RBDPool && a.RBDImage == b.RBDImage && !(a.ReadOnly && b.ReadOnly) &&
			slices.ContainsFunc(a.CephMonitors, func(m string) bool { return slices.Contains(b.CephMonitors, m) })
	}
	return false
}

// Interests implements Requeuer.
func (VolumeRestrictions) Interests(in Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add},
		{Resource: queue.Node, Action: queue.Delete, Hint: func(item *queue.Item, e *queue.Event) bool {
			return slices.ContainsFunc(e.NodeBefore.Pods, func(p *cluster.Pod) bool { return sharesVolume(item.Class, p.Class) })
		}},
		{Resource: queue.Pod, Action: queue.Delete, Hint: func(item *queue.Item, e *queue.Event) bool {
			return e.PodBefore != nil && sharesVolume(item.Class, e.PodBefore.Class)
		}, Narrowing: everyoneUnless(func(e *queue.Event) bool { return !usedVolumes(e, isAttachable) })},
		{Resource: queue.Claim, Action: queue.Add, Hint: ofClaim, PerPod: true, Narrowing: in.byClaims()},
	}
}

// sharesVolume reports whether two pods use conflicting disks, or the same claim.
func sharesVolume(a, b *cluster.PodClass) bool {
	for i := range a.Spec.Volumes {
		for j := range b.Spec.Volumes {
			x, y := &a.Spec.Volumes[i], &b.Spec.Volumes[j]
			switch {
			case disksConflict(x, y):
				return true
			case x.PersistentVolumeClaim != nil && y.PersistentVolumeClaim != nil && a.Namespace == b.Namespace &&
				x.PersistentVolumeClaim.ClaimName == y.PersistentVolumeClaim.ClaimName:
				return true
			}
		}
	}
	return false
}

// Wakes implements Waker.
func (VolumeRestrictions) Wakes() []string {
	return []string{"a pod leaves its node", "a claim changes"}
}

// Fixes implements Fixer.
func (VolumeRestrictions) Fixes() []Fix { return []Fix{ProvideVolumes, FreeClaim} }

// Shares implements Sharer: the plugins that look at volumes speak of the same claims.
func (VolumeRestrictions) Shares(*cluster.Pod, *cluster.Node) (plugin string, own bool) {
	return (*VolumeBinding)(nil).Name(), true
}
