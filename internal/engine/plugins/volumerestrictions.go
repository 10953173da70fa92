// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// VolumeRestrictions enforces exclusive use of volumes: per node for disks named in the pod's spec,
// and cluster-wide for claims with the access mode ReadWriteOncePod.
type VolumeRestrictions struct{}

// Codes of VolumeRestrictions.
const (
	CodeDiskConflict         = "DiskConflict"
	CodeReadWriteOncePodUsed = "ReadWriteOncePodClaimInUse"
)

// The rejections of VolumeRestrictions. Preemption can help with both, since a victim gives up its
// disk or claim.
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

// Applies implements [Selective]. It excludes ephemeral volumes: such a claim is made for one pod,
// so no other pod can use it.
func (VolumeRestrictions) Applies(_ *cluster.Cluster, p *cluster.Pod) bool {
	return slices.ContainsFunc(p.Spec().Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || isExclusive(&v) })
}

// Filter implements [Filter]. It first counts the users of the claims over all nodes, because a
// user on another node also makes a node infeasible.
func (VolumeRestrictions) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	disks := disksOf(p.Spec().Volumes)
	alone := sets.New[string]() // exclusive claims
	for i := range p.Spec().Volumes {
		v := &p.Spec().Volumes[i]
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
	// Claims that allow many pods do not require examining any node.
	if len(disks)+len(alone) == 0 {
		return Judge{}
	}

	conflicts := &ofClasses{find: func(class *cluster.PodClass) bool { return disks.conflictWith(class.Spec.Volumes) }}
	users := usersOf(p.Namespace(), alone)
	used := map[int32]int{} // by node
	total := 0
	// Count over all nodes only for the few pods with exclusive claims.
	if len(alone) > 0 {
		for _, n := range c.Nodes {
			if n != nil {
				if users := users.countPods(n); users > 0 {
					used[n.Index] = users
					total += users
				}
			}
		}
	}
	rejectionOn := func(n *cluster.Node) *Rejection {
		switch {
		case len(disks) > 0 && conflicts.anyPod(n):
			return diskConflict
		// n may be a copy without some of its pods. So the count covers only users on other nodes,
		// and n itself is searched for users: preemption can help if the only user is on n.
		case total > used[n.Index], len(alone) > 0 && users.anyPod(n):
			return readWriteOncePodUsed
		}
		return nil
	}
	return Judge{Node: rejectionOn, Surely: func(n *cluster.Node) bool { return rejectionOn(n) == nil }}
}

// usersOf determines whether the pods of a class use one of the claims. All claims are in one
// namespace.
func usersOf(namespace string, claims sets.Set[string]) *ofClasses {
	return &ofClasses{find: func(class *cluster.PodClass) bool {
		return class.Namespace == namespace && useClaims(class.Spec.Volumes, claims)
	}}
}

// useClaims reports whether one of the volumes is one of the claims.
func useClaims(volumes []v1.Volume, claims sets.Set[string]) bool {
	return slices.ContainsFunc(volumes, func(v v1.Volume) bool {
		return v.PersistentVolumeClaim != nil && claims.Has(v.PersistentVolumeClaim.ClaimName)
	})
}

// Interests implements Requeuer. Deleting a node removes its pods that use a disk or claim; a new
// node may be free of conflicts.
func (VolumeRestrictions) Interests(setting Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add},
		{Resource: queue.Node, Action: queue.Delete, Hint: func(item *queue.Item, e *queue.Event) bool {
			return slices.ContainsFunc(e.NodeBefore.Pods, func(p *cluster.Pod) bool { return sharesVolume(item.Class, p.Class) })
		}},
		{Resource: queue.Pod, Action: queue.Delete, Hint: func(item *queue.Item, e *queue.Event) bool {
			return e.PodBefore != nil && sharesVolume(item.Class, e.PodBefore.Class)
		}, Narrowing: everyoneUnless(func(e *queue.Event) bool { return !usedVolumes(e, isAttachable) })},
		{Resource: queue.Claim, Action: queue.Add, Hint: ofClaim, PerPod: true, Narrowing: setting.byClaims()},
	}
}

// sharesVolume reports whether two pods use conflicting disks, or the same claim. It does not check
// that the claim is exclusive: a hint may wake too many pods.
func sharesVolume(a, b *cluster.PodClass) bool {
	if disksOf(a.Spec.Volumes).conflictWith(b.Spec.Volumes) {
		return true
	}
	if a.Namespace != b.Namespace {
		return false
	}
	claims := sets.New[string]()
	for i := range a.Spec.Volumes {
		if claim := a.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			claims.Insert(claim.ClaimName)
		}
	}
	return useClaims(b.Spec.Volumes, claims)
}

// Wakes implements Waker.
func (VolumeRestrictions) Wakes() []string {
	return []string{"a pod leaves its node", "a claim changes"}
}

// Fixes implements Fixer.
func (VolumeRestrictions) Fixes() []Fix { return []Fix{ProvideVolumes, FreeClaim} }

// Shares implements Sharer: the volume plugins reject pods because of the same claims.
func (VolumeRestrictions) Shares(*cluster.Pod, *cluster.Node) (plugin string, own bool) {
	return (*VolumeBinding)(nil).Name(), true
}
