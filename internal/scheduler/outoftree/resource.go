// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// resources holds amounts of resources in the form for plugins. CPU is in thousandths of a core,
// memory and storage in bytes. Scalars holds the extended resources and huge pages; nil means none.
type resources struct{ cluster.Resources }

var _ fwk.Resource = &resources{}

// GetMilliCPU and its siblings implement fwk.Resource.
func (r *resources) GetMilliCPU() int64                            { return r.MilliCPU }
func (r *resources) GetMemory() int64                              { return r.Memory }
func (r *resources) GetEphemeralStorage() int64                    { return r.EphemeralStorage }
func (r *resources) GetAllowedPodNumber() int                      { return int(r.Pods) }
func (r *resources) GetScalarResources() map[v1.ResourceName]int64 { return r.Scalars }

// SetMaxResource raises every amount to the amount in the list, if that is larger. Like upstream,
// it does not raise the number of pods.
func (r *resources) SetMaxResource(list v1.ResourceList) {
	other := cluster.NewResources(list)
	r.MilliCPU = max(r.MilliCPU, other.MilliCPU)
	r.Memory = max(r.Memory, other.Memory)
	r.EphemeralStorage = max(r.EphemeralStorage, other.EphemeralStorage)
	for name, amount := range other.Scalars {
		if r.Scalars == nil {
			r.Scalars = map[v1.ResourceName]int64{}
		}
		r.Scalars[name] = max(r.Scalars[name], amount)
	}
}

// clone copies the scalars as well, so that changing the copy does not change r.
func (r *resources) clone() resources {
	copied := *r
	copied.Scalars = maps.Clone(r.Scalars)
	return copied
}

// countRequests adds sign times a pod's requests; sign is 1 or -1. It does not count the number of
// pods.
func (r *resources) countRequests(o fwk.Resource, sign int64) {
	r.MilliCPU += sign * o.GetMilliCPU()
	r.Memory += sign * o.GetMemory()
	r.EphemeralStorage += sign * o.GetEphemeralStorage()
	for name, amount := range o.GetScalarResources() {
		if r.Scalars == nil {
			r.Scalars = map[v1.ResourceName]int64{}
		}
		r.Scalars[name] += sign * amount
	}
}
