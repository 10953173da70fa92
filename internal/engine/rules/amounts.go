// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Amount returns a quantity in the units of decisions: CPU in thousandths, everything else in ones,
// rounded up. It saturates at the largest int64, which no node can exceed. (For larger quantities,
// Quantity.Value and MilliValue return 0 or wrap around, which would turn an excessive request into
// an empty request.)
//
//	cpu 1500m -> 1500    cpu 0.5m -> 1    memory 1Ki -> 1024    memory 1500m -> 2
func Amount(name v1.ResourceName, quantity resource.Quantity) int64 {
	whole, most := int64(1), int64(math.MaxInt64)
	if name == v1.ResourceCPU {
		whole, most = 1000, most/1000
	}
	// Comparing quantities is the most expensive step, and most quantities are whole numbers.
	if v, ok := quantity.AsInt64(); ok && -most <= v && v <= most {
		return v * whole
	}
	switch {
	case quantity.Sign() >= 0 && quantity.CmpInt64(most) > 0:
		return math.MaxInt64
	case quantity.Sign() < 0 && quantity.CmpInt64(-most) < 0:
		return -math.MaxInt64
	case name == v1.ResourceCPU:
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// Sum adds amounts and saturates at the largest and the lowest int64. A saturated sum does not
// support subtraction: it must be recomputed from the remaining amounts.
func Sum(a, b int64) int64 {
	sum := a + b
	switch {
	case b > 0 && sum < a:
		return math.MaxInt64
	case b < 0 && sum > a:
		return -math.MaxInt64
	}
	return sum
}
