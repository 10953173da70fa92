// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// resourceSpecs are a scorer's weighted resources, as configured, with defaults applied. A resource
// listed twice, as NodeResourcesFit permits, weighs twice.
type resourceSpecs []config.ResourceSpec

// amounts are the amounts of one resource on one node: the amount allocated to its pods, without
// the pending pod, and the node's allocatable amount. CPU is in thousandths, memory and storage in
// bytes. The score ignores a resource with allocatable 0.
type amounts struct{ allocated, allocatable int64 }

// resourceReader looks up the amounts compared by a scorer. It is made for one pod and is read-only
// afterwards, so that nodes can be scored in parallel.
type resourceReader struct {
	// specs are the scorer's resources. wanted, and the indices passed to amountsOn, have the same
	// order.
	specs resourceSpecs
	// wanted is the pod's request for each resource, by the rules of the scorer.
	wanted []int64
	// nonZero reports whether the amounts of placed pods include default requests of containers
	// that request no CPU or memory (NonZeroCPU and NonZeroMemory).
	nonZero bool
	cluster *cluster.Cluster
	// devices counts the devices backing extended resources on nodes that lack the resource itself;
	// nil if there are no such devices.
	devices *deviceCounts
}

// amountsOn returns the amounts of the i-th resource on a node. A resource limited to some nodes,
// such as an extended resource, counts only if the pod requests it: otherwise nodes with GPUs would
// score differently for pods without GPUs.
func (r *resourceReader) amountsOn(i int, n *cluster.Node) amounts {
	name := v1.ResourceName(r.specs[i].Name)
	switch room := &r.cluster.Rooms[n.Index]; name {
	case v1.ResourceCPU:
		if r.nonZero {
			return amounts{room.NonZeroCPU, room.CPU}
		}
		return amounts{room.RequestedCPU, room.CPU}
	case v1.ResourceMemory:
		if r.nonZero {
			return amounts{room.NonZeroMemory, room.Memory}
		}
		return amounts{room.RequestedMemory, room.Memory}
	case v1.ResourceEphemeralStorage:
		return amounts{n.Requested.EphemeralStorage, n.Size.EphemeralStorage}
	}

	if r.wanted[i] == 0 && cluster.IsScalar(name) {
		return amounts{}
	}
	// A node without the resource itself may offer it through devices of a DeviceClass.
	allocatable := n.Size.Scalars[name]
	if allocatable == 0 && r.devices != nil {
		return r.devices.countOn(n, name)
	}
	return amounts{n.Requested.Scalars[name], allocatable}
}

// roomOnly reports whether only CPU and memory count for the pod. A resource listed twice is beyond
// the simple case covered by [RoomScore].
func (r *resourceReader) roomOnly() bool {
	seen := map[v1.ResourceName]bool{}
	for i := range r.specs {
		name := v1.ResourceName(r.specs[i].Name)
		isRoom := name == v1.ResourceCPU || name == v1.ResourceMemory
		if isRoom && seen[name] || !isRoom && (r.wanted[i] != 0 || !cluster.IsScalar(name)) {
			return false
		}
		seen[name] = true
	}
	return true
}

// cpuAndMemory returns the pod's amounts of CPU and memory. The amount of a resource that is not
// scored is 0.
func (r *resourceReader) cpuAndMemory() (cpu, memory int64) {
	for i := range r.specs {
		switch v1.ResourceName(r.specs[i].Name) {
		case v1.ResourceCPU:
			cpu = r.wanted[i]
		case v1.ResourceMemory:
			memory = r.wanted[i]
		}
	}
	return cpu, memory
}

// requestsOf lists the pod's request for each resource, in the order of s, counted by the rules of
// the scorer: with defaults (rules.ScoreRequests) or without (rules.Requests).
func (s resourceSpecs) requestsOf(p *cluster.Pod, rule func(*v1.Pod) v1.ResourceList) []int64 {
	names := rules.Mapped(s, func(spec config.ResourceSpec) v1.ResourceName { return v1.ResourceName(spec.Name) })
	list := rules.RequestsOf(&v1.Pod{Spec: p.Spec().Object()}, rule, names...)
	return rules.Mapped(names, func(name v1.ResourceName) int64 { return rules.Amount(name, list[name]) })
}

// weightOf returns the configured weight of a resource: the sum if it is listed twice, 0 if it does
// not count.
func (s resourceSpecs) weightOf(name v1.ResourceName) (sum int64) {
	for i := range s {
		if s[i].Name == string(name) {
			sum += s[i].Weight
		}
	}
	return sum
}

// Shortage is a resource in short supply on a node for a pod: Wanted exceeds Free. Free is negative
// on an overcommitted node, for instance after its allocatable shrank.
type Shortage struct {
	Name               v1.ResourceName
	Wanted, Free, Size int64 // CPU in thousandths
}

// Text formats an amount of the resource for people.
func (s *Shortage) Text(amount int64) string { return Amount(s.Name, amount) }

// Amount formats an amount of a resource with at most four digits, and memory in the largest unit
// that fits: 35.2Ti rather than 36000Gi. It may round; Quantity does not.
func Amount(name v1.ResourceName, amount int64) string {
	text := Quantity(name, amount).String()
	if name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage || len(strings.TrimRight(text, "KMGTPEi")) <= len("1024") {
		return text
	}
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	size, unit := float64(amount), 0
	for ; size >= 1024 && unit < len(units)-1; unit++ {
		size /= 1024
	}
	// One decimal suffices for people to compare amounts, and limits the text to four digits.
	const tenths = 10
	return strconv.FormatFloat(math.Round(size*tenths)/tenths, 'f', -1, 64) + units[unit]
}

// Quantity returns an amount of a resource in its customary unit: CPU (given in thousandths) as
// 1500m, memory and ephemeral storage in powers of two, everything else as a plain number.
func Quantity(name v1.ResourceName, amount int64) *resource.Quantity {
	switch name {
	case v1.ResourceCPU:
		return resource.NewMilliQuantity(amount, resource.DecimalSI)
	case v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return resource.NewQuantity(amount, resource.BinarySI)
	}
	return resource.NewQuantity(amount, resource.DecimalSI)
}

// Shortages returns the resources with requests above the node's free amount. CPU, memory and
// ephemeral storage precede all other resources, which are sorted by name, so that the text for a
// node is stable. It does not include the limit on pods. It returns nil if the pod's requests fit.
func Shortages(p *cluster.Pod, n *cluster.Node) []Shortage {
	var list []Shortage
	check := func(name v1.ResourceName, wanted, size, requested int64) {
		if wanted > 0 && wanted > size-requested {
			list = append(list, Shortage{name, wanted, size - requested, size})
		}
	}

	r := &p.Class.Requests
	check(v1.ResourceCPU, r.MilliCPU, n.Size.MilliCPU, n.Requested.MilliCPU)
	check(v1.ResourceMemory, r.Memory, n.Size.Memory, n.Requested.Memory)
	check(v1.ResourceEphemeralStorage, r.EphemeralStorage, n.Size.EphemeralStorage, n.Requested.EphemeralStorage)
	for _, name := range slices.Sorted(maps.Keys(r.Scalars)) {
		check(name, r.Scalars[name], n.Size.Scalars[name], n.Requested.Scalars[name])
	}
	return list
}
