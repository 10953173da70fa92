// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

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
