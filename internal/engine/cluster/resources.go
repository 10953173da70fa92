// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Resources are amounts as counted by the scheduler: CPU in thousandths, everything else in whole
// units. A sum equal to the largest int64 may have overflowed; see subtractFrom.
type Resources struct {
	MilliCPU         int64
	Memory           int64
	EphemeralStorage int64
	Pods             int64 // maximum number of pods on a node; 0 in a pod's request
	// Scalars are extended resources, huge pages and attachable volumes; nil if there are none.
	Scalars map[v1.ResourceName]int64
}

// NewResources converts a resource list. Like upstream, it omits names not counted by the
// scheduler.
func NewResources(list v1.ResourceList) Resources {
	var r Resources
	for name, quantity := range list {
		switch name {
		case v1.ResourceCPU:
			r.MilliCPU = rules.Amount(name, quantity)
		case v1.ResourceMemory:
			r.Memory = rules.Amount(name, quantity)
		case v1.ResourceEphemeralStorage:
			r.EphemeralStorage = rules.Amount(name, quantity)
		case v1.ResourcePods:
			r.Pods = rules.Amount(name, quantity)
		default:
			if IsScalar(name) {
				if r.Scalars == nil {
					r.Scalars = make(map[v1.ResourceName]int64)
				}
				r.Scalars[name] = rules.Amount(name, quantity)
			}
		}
	}

	return r
}

// Amount returns the amount of one resource by name, or 0 for an uncounted one.
func (r *Resources) Amount(name v1.ResourceName) int64 {
	switch name {
	case v1.ResourceCPU:
		return r.MilliCPU
	case v1.ResourceMemory:
		return r.Memory
	case v1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case v1.ResourcePods:
		return r.Pods
	}
	return r.Scalars[name]
}

// add adds o to r, except for Pods, which is a limit. A sum that would overflow stays at the
// largest int64.
func (r *Resources) add(o *Resources) {
	r.MilliCPU = rules.Sum(r.MilliCPU, o.MilliCPU)
	r.Memory = rules.Sum(r.Memory, o.Memory)
	r.EphemeralStorage = rules.Sum(r.EphemeralStorage, o.EphemeralStorage)
	for name, amount := range o.Scalars {
		if r.Scalars == nil {
			r.Scalars = make(map[v1.ResourceName]int64)
		}
		r.Scalars[name] = rules.Sum(r.Scalars[name], amount)
	}
}

// Add is add for other packages.
func (r *Resources) Add(o *Resources) { r.add(o) }

// subtractFrom subtracts o, which must have been added before. It returns false if a sum may have
// overflowed: the remainder is then unknown, and the caller must add up again.
func (r *Resources) subtractFrom(o *Resources) bool {
	if r.MilliCPU == math.MaxInt64 || r.Memory == math.MaxInt64 || r.EphemeralStorage == math.MaxInt64 {
		return false
	}

	r.MilliCPU -= o.MilliCPU
	r.Memory -= o.Memory
	r.EphemeralStorage -= o.EphemeralStorage
	for name, amount := range o.Scalars {
		switch left := r.Scalars[name]; left {
		case math.MaxInt64:
			return false
		case amount: // tenants may invent any number of names, so drop names with amount 0
			delete(r.Scalars, name)
		default:
			r.Scalars[name] = left - amount
		}
	}
	if len(r.Scalars) == 0 {
		r.Scalars = nil
	}
	return true
}

// placedRequests returns the amounts counted for a placed pod: its requests, and CPU and memory
// with defaults for containers without requests. Most pods request only CPU and memory, which
// PlainRequests computes without a map.
func placedRequests(pod *v1.Pod) (requests Resources, nonZeroCPU, nonZeroMemory int64) {
	if cpu, memory, scoreCPU, scoreMemory, ok := rules.PlainRequests(pod); ok {
		return Resources{MilliCPU: cpu, Memory: memory}, scoreCPU, scoreMemory
	}
	requests = NewResources(rules.RequestsPlaced(pod))
	score := rules.RequestsOf(pod, rules.ScoreRequestsPlaced, v1.ResourceCPU, v1.ResourceMemory)
	cpu, memory := score[v1.ResourceCPU], score[v1.ResourceMemory]
	return requests, rules.Amount(v1.ResourceCPU, cpu), rules.Amount(v1.ResourceMemory, memory)
}

// IsScalar reports whether a resource other than CPU, memory and ephemeral storage is counted:
// extended resources, huge pages, native resources by their full name, and attachable volumes.
func IsScalar(name v1.ResourceName) bool {
	s := string(name)
	return strings.HasPrefix(s, v1.ResourceHugePagesPrefix) || strings.HasPrefix(s, v1.ResourceAttachableVolumesPrefix) ||
		strings.Contains(s, v1.ResourceDefaultNamespacePrefix) || rules.IsExtendedResource(name)
}
