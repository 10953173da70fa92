// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// VolumeBinding keeps pods on nodes that can reach the volumes of their claims. For unbound claims
// with the binding mode WaitForFirstConsumer, it chooses the volumes together with the node:
// existing volumes, or new volumes to provision there. It prefers nodes with much free storage.
//
// The filter only checks feasibility. After the choice of a node, the volumes are chosen again
// (PodVolumes) and the choice is assumed in the cluster (Assume). The live scheduler then writes
// the choice and waits for the binding (Bound).
type VolumeBinding struct {
	// Timeout is the live scheduler's limit on waiting for volumes to be bound.
	Timeout time.Duration

	shape shape // shape of the score; nil: no scoring
}

// Codes of VolumeBinding.
const (
	// Codes of a node's rejection, in the order listed by decideOn.
	CodeVolumeNodeAffinity = "VolumeNodeAffinity"
	CodeNoVolumeToBind     = "NoVolumeToBind"
	CodeNotEnoughStorage   = "NotEnoughStorage"
	CodeVolumeMissing      = "BoundVolumeMissing"
	// Codes of the rejection of a pod as a whole, before any node is examined.
	CodeImmediateUnbound = "ImmediateClaimUnbound"
	CodeClaimLost        = "ClaimLost"
	CodeClaimTerminating = "ClaimTerminating"
	CodeClaimNotOwned    = "ClaimNotOwned"
	CodeManyClaims       = "TooManyUnboundClaims"
)

// NewVolumeBinding makes the plugin; nil args select the defaults.
func NewVolumeBinding(args *config.VolumeBindingArgs) (*VolumeBinding, error) {
	args, err := completeArgs(args)
	if err != nil {
		return nil, err
	}
	return &VolumeBinding{Timeout: time.Duration(*args.BindTimeoutSeconds) * time.Second, shape: newShape(args.Shape)}, nil
}

// Name implements [Filter], [Scorer] and [Reserver].
func (v *VolumeBinding) Name() string { return "VolumeBinding" }

// Reads implements [Filter].
func (v *VolumeBinding) Reads() Part { return Labels | Identity | Objects }

// Applies implements [Selective]. It excludes pods without claims, the vast majority.
func (v *VolumeBinding) Applies(_ *cluster.Cluster, p *cluster.Pod) bool {
	return slices.ContainsFunc(p.Spec().Volumes, func(v v1.Volume) bool { _, _, claims := claimOf(p, &v); return claims })
}

// Filter implements [Filter]. If the claims rule out every node, for example because one is
// unbound, lost or terminating, it rejects the pod as a whole rather than node by node.
func (v *VolumeBinding) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	claims, rejection, err := readClaims(c, p)
	switch {
	case err != nil:
		return Judge{Err: err}
	case rejection != nil:
		return Judge{All: rejection}
	case claims == nil:
		return Judge{}
	}
	return Judge{Node: func(n *cluster.Node) *Rejection { return claims.decideOn(n, nil) }}
}

// PodVolumes are the volumes and claims changed by placing a pod on a node, in the form to write
// before the pod is bound. If both lists are empty, the pod can be bound without writing or
// waiting. The objects are copies, except for unchanged volumes.
type PodVolumes struct {
	// Volumes refer to their new claim in claimRef; some may already have been reserved for it.
	Volumes []*v1.PersistentVolume
	// Claims are annotated with the node for which their volume must be provisioned.
	Claims []*v1.PersistentVolumeClaim
	// Timeout is the time volumes may take to be bound.
	Timeout time.Duration
}

// VolumeReserver is a [Reserver] of volumes. Its choice must be written to the API before the pod
// is bound, and then awaited.
type VolumeReserver interface {
	Reserver
	PodVolumes(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (PodVolumes, error)
}

// PodVolumes chooses the volumes for a pod on a node, in agreement with the filter unless the
// cluster has changed since. An error means that the pod cannot go there after all.
func (v *VolumeBinding) PodVolumes(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (PodVolumes, error) {
	claims, rejection, err := readClaims(c, p)
	// No claims: nothing to write.
	if err != nil || claims == nil && rejection == nil {
		return PodVolumes{}, err
	}

	// Repeat the filter's decision: other pods may have been placed in between.
	var decided volumeDecision
	if rejection == nil {
		rejection = claims.decideOn(n, &decided)
	}

	switch {
	case rejection == nil:
	case rejection.Err != nil:
		return PodVolumes{}, rejection.Err
	default:
		return PodVolumes{}, fmt.Errorf("node %s has no volumes for pod %s/%s: %s", n.Name, p.Namespace(), p.Name(),
			strings.Join(rejection.Reasons, ", "))
	}

	changed := PodVolumes{Timeout: v.Timeout}
	changed.Volumes = rules.Mapped(decided.matches, func(m volumeMatch) *v1.PersistentVolume { return bindVolume(m.volume, m.claim) })

	for _, u := range decided.provision {
		claim := u.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annSelectedNode, n.Name)
		changed.Claims = append(changed.Claims, claim)
	}
	return changed, nil
}

// Assume applies the changes to the cluster's objects ahead of the writes, so that the next pod
// does not get the same volume. undo skips objects changed since, because the API's version is
// newer.
func (v PodVolumes) Assume(c *cluster.Cluster) (undo func()) {
	undos := append(
		rules.Mapped(v.Volumes, func(o *v1.PersistentVolume) func() { return replaceObject(&c.Volumes, o) }),
		rules.Mapped(v.Claims, func(o *v1.PersistentVolumeClaim) func() { return replaceObject(&c.Claims, o) })...)
	return func() {
		for _, undo := range slices.Backward(undos) {
			undo()
		}
	}
}

// replaceObject replaces the object of the same name. undo restores the former object, unless the
// object has since been replaced again.
func replaceObject[T interface {
	comparable
	metav1.Object
}](table *cluster.Table[T], object T) (undo func()) {
	before, existed := table.Get(object.GetNamespace(), object.GetName())
	table.Set(object)
	return func() {
		if now, _ := table.Get(object.GetNamespace(), object.GetName()); now != object {
			return
		}
		if existed {
			table.Set(before)
		} else {
			table.Delete(object.GetNamespace(), object.GetName())
		}
	}
}

// Bound reports whether all volumes and claims are bound to each other, so that the pod can be
// bound to the node. An error means that they will never be bound: the pod must be scheduled again.
// The caller repeats the call after each change of volumes and claims; Bound reads only the
// cluster's objects.
func (v PodVolumes) Bound(c *cluster.Cluster, n *cluster.Node) (bool, error) {
	for _, written := range v.Volumes {
		volume, ok := c.Volumes.Get("", written.Name)
		switch {
		case !ok:
			return false, fmt.Errorf("failed to check binding: %s", volumeNotFound(written.Name))
		// The volume controller or a user took the volume back.
		case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID == "":
			return false, fmt.Errorf("ClaimRef got reset for pv %q", volume.Name)
		}
		ref := written.Spec.ClaimRef
		claim, ok := c.Claims.Get(ref.Namespace, ref.Name)
		if !ok {
			return false, fmt.Errorf("failed to check binding: %s", claimNotFound(ref.Name))
		}
		if bound, err := boundOn(c, claim, n); !bound || err != nil {
			return false, err
		}
	}
	for _, written := range v.Claims {
		claim, ok := c.Claims.Get(written.Namespace, written.Name)
		switch {
		case !ok:
			return false, fmt.Errorf("failed to check provisioning pvc: %s", claimNotFound(written.Name))
		case claim.Annotations[annSelectedNode] != n.Name: // removed or changed, for example by a provisioner that rejects the node
			return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
		}
		if bound, err := boundOn(c, claim, n); !bound || err != nil {
			return false, err
		}
	}
	return true, nil
}

// boundOn reports whether a claim is bound. A volume out of the node's reach is an error: a
// provisioner may have ignored the selected node.
func boundOn(c *cluster.Cluster, claim *v1.PersistentVolumeClaim, n *cluster.Node) (bool, error) {
	b := readBound(c, claim)
	if b.volume == nil {
		return false, nil
	}
	within, err := b.usableOn(c, n)
	if err != nil {
		return false, err
	}
	if !within {
		return false, fmt.Errorf("pv %q node affinity doesn't match node %q: no matching NodeSelectorTerms", b.volume.Name, n.Name)
	}
	return fullyBound(claim), nil
}

// Reserve implements [Reserver] for callers that write nothing; callers writing the volumes to the
// API use PodVolumes.
func (v *VolumeBinding) Reserve(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (undo func(), err error) {
	volumes, err := v.PodVolumes(c, p, n)
	if err != nil {
		return nil, err
	}
	return volumes.Assume(c), nil
}

// Interests implements Requeuer. An update of a CSINode matters only if it changes the migrated
// plugins. A CSIDriver matters only when it ceases to track capacity, after which every node has
// room.
func (*VolumeBinding) Interests(setting Setting) []queue.Interest {
	keys := &volumeKeys{c: setting.Cluster}
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel, Hint: setting.nodeNowServes, PerPod: true,
			Narrowing: byVolumeKeys(keys.hasKey)},
		{Resource: queue.Claim, Action: queue.All, Hint: ofClaim, PerPod: true, Narrowing: setting.byClaims()},
		{Resource: queue.Volume, Action: queue.All, Hint: setting.ofVolume, PerPod: true, Narrowing: setting.byClaims()},

		{Resource: queue.StorageClass, Action: queue.Add | queue.Update, Hint: setting.ofStorageClass, PerPod: true},
		{Resource: queue.CSINode, Action: queue.All, Hint: func(_ *queue.Item, e *queue.Event) bool {
			was, isOld := e.Old.(*storagev1.CSINode)
			is, isNew := e.New.(*storagev1.CSINode)
			return !isOld || !isNew || was.Annotations[v1.MigratedPluginsAnnotationKey] != is.Annotations[v1.MigratedPluginsAnnotationKey]
		}},

		{Resource: queue.CSIDriver, Action: queue.All, Hint: func(_ *queue.Item, e *queue.Event) bool {
			was, isOld := e.Old.(*storagev1.CSIDriver)
			is, isNew := e.New.(*storagev1.CSIDriver)
			// A driver that begins to track capacity only ever rejects more.
			tracks := func(d *storagev1.CSIDriver) bool { return d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity }
			return isOld && tracks(was) && !(isNew && tracks(is))
		}},

		{Resource: queue.CSIStorageCapacity, Action: queue.Add | queue.Update, Hint: setting.ofCapacity, PerPod: true,
			Narrowing: everyoneUnless(noMoreStorage)},
	}
}

// Wakes implements Waker.
func (*VolumeBinding) Wakes() []string {
	return []string{"a claim, volume, storage class or storage capacity is added or changes", "a node is added or changes its labels"}
}

// Fixes implements Fixer.
func (*VolumeBinding) Fixes() []Fix { return []Fix{ProvideVolumes, MoveVolumes} }

// storage is the storage of a class requested by a pod on a node, and the node's capacity, in
// bytes.
type storage struct{ requested, capacity int64 }

// Score implements [Scorer]. It scores a node by the share of its free storage taken by the pod's
// claims, class by class. By default, the node with the smallest share is best: 10Gi of 40Gi free
// gives 75. Only claims that receive their volume together with the node count.
func (v *VolumeBinding) Score(c *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	if v.shape == nil {
		return Scoring{}
	}
	claims, rejection, err := readClaims(c, p)
	if err != nil || rejection != nil || claims == nil || len(claims.unbound) == 0 {
		return Scoring{Err: err}
	}

	return Scoring{Node: func(n *cluster.Node) (int64, error) {
		var decided volumeDecision
		if r := claims.decideOn(n, &decided); r != nil {
			return 0, r.Err
		}
		return v.shape.ofStorage(decided.storageByClass(n)), nil
	}}
}

// storageByClass sums up by class the storage taken by the claims on the node. If some claims
// receive existing volumes, only these claims count: upstream compares either sizes of volumes or
// free storage, never a mix.
func (d *volumeDecision) storageByClass(n *cluster.Node) map[string]storage {
	byClass := map[string]storage{}
	for _, m := range d.matches {
		s := byClass[m.volume.Spec.StorageClassName]
		s.requested = rules.Sum(s.requested, claimSize(m.claim))
		s.capacity = rules.Sum(s.capacity, rules.Amount(v1.ResourceStorage, m.volume.Spec.Capacity[v1.ResourceStorage]))
		byClass[m.volume.Spec.StorageClassName] = s
	}
	if len(d.matches) > 0 {
		return byClass
	}

	for _, u := range d.provision {
		// kube-scheduler panics if the driver reports the largest volume but not the capacity.
		capacity := u.provision.roomOn(n)
		if capacity == nil || capacity.Capacity == nil {
			continue
		}
		name := claimClass(u.PersistentVolumeClaim)
		byClass[name] = storage{
			requested: rules.Sum(byClass[name].requested, claimSize(u.PersistentVolumeClaim)),
			capacity:  rules.Amount(v1.ResourceStorage, *capacity.Capacity), // capacity for all claims together, rather than for each claim
		}
	}
	return byClass
}

// claimSize is the storage requested by the claim, in bytes; 0 without a request.
func claimSize(claim *v1.PersistentVolumeClaim) int64 {
	return rules.Amount(v1.ResourceStorage, claim.Spec.Resources.Requests[v1.ResourceStorage])
}

// ofStorage is the mean score of the classes, which have equal weights. It is 0 for an empty map.
func (s shape) ofStorage(byClass map[string]storage) int64 {
	if len(byClass) == 0 {
		return 0
	}
	var sum int64
	for _, of := range byClass {
		sum += s.scoreRatio(of.requested, of.capacity)
	}
	return int64(math.Round(float64(sum) / float64(len(byClass))))
}

// roomOn returns the capacity with room for the volume on the node, or nil if unreported.
func (p *provision) roomOn(n *cluster.Node) *storagev1.CSIStorageCapacity {
	for i := range p.segments {
		if p.segments[i].nodes.Matches(n) {
			return p.segments[i].capacity
		}
	}
	return nil
}
