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

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

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
