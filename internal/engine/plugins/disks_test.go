// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// pairConflicts is upstream's rule for two volumes.
func pairConflicts(a, b *v1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		a, b := a.GCEPersistentDisk, b.GCEPersistentDisk
		return a.PDName == b.PDName && !(a.ReadOnly && b.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		a, b := a.ISCSI, b.ISCSI
		return a.IQN == b.IQN && !(a.ReadOnly && b.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		a, b := a.RBD, b.RBD
		return a.RBDPool == b.RBDPool && a.RBDImage == b.RBDImage && !(a.ReadOnly && b.ReadOnly) &&
			slices.ContainsFunc(a.CephMonitors, func(m string) bool { return slices.Contains(b.CephMonitors, m) })
	}
	return false
}

// TestDisksConflictAsEachPairDoes verifies, for the volumes of random pods, that diskSet finds a
// conflict if and only if upstream's rule finds one for some pair of volumes.
func TestDisksConflictAsEachPairDoes(t *testing.T) {
	conflicts := 0
	for seed := range uint64(30_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		name := func() string { return fmt.Sprint(r.IntN(12)) }
		volume := func() (v v1.Volume) {
			readOnly := r.IntN(2) == 0
			switch r.IntN(5) {
			case 0:
				v.GCEPersistentDisk = &v1.GCEPersistentDiskVolumeSource{PDName: name(), ReadOnly: readOnly}
			case 1:
				v.AWSElasticBlockStore = &v1.AWSElasticBlockStoreVolumeSource{VolumeID: name(), ReadOnly: readOnly}
			case 2:
				v.ISCSI = &v1.ISCSIVolumeSource{TargetPortal: name(), IQN: name(), ReadOnly: readOnly}
			case 3:
				v.RBD = &v1.RBDVolumeSource{RBDPool: fmt.Sprint(r.IntN(2)), RBDImage: fmt.Sprint(r.IntN(2)), ReadOnly: readOnly}
				for range r.IntN(3) {
					v.RBD.CephMonitors = append(v.RBD.CephMonitors, fmt.Sprint(r.IntN(4)))
				}
			case 4:
				v.EmptyDir = &v1.EmptyDirVolumeSource{}
			}
			return v
		}
		var one, other []v1.Volume
		for range r.IntN(5) {
			one = append(one, volume())
		}
		for range r.IntN(5) {
			other = append(other, volume())
		}
		want := slices.ContainsFunc(one, func(a v1.Volume) bool {
			return slices.ContainsFunc(other, func(b v1.Volume) bool { return pairConflicts(&a, &b) })
		})
		if got := disksOf(one).conflictWith(other); got != want {
			t.Fatalf("seed %d: %v, want %v: %v and %v", seed, got, want, one, other)
		}
		if want {
			conflicts++
		}
	}
	t.Logf("%d of 30,000 pairs conflict", conflicts)
}
