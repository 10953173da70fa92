// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"math"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestAmountsStayInRange verifies that every quantity accepted by the API counts as at least its
// value.
func TestAmountsStayInRange(t *testing.T) {
	twice := resource.MustParse("9223372036854775807")
	twice.Add(twice)
	for _, c := range []struct {
		name     v1.ResourceName
		quantity resource.Quantity
		want     int64
	}{
		{v1.ResourceCPU, resource.MustParse("1500m"), 1500},
		{v1.ResourceCPU, resource.MustParse("0.0001"), 1},
		{v1.ResourceCPU, resource.MustParse("9223372036854775"), 9223372036854775000},
		{v1.ResourceCPU, resource.MustParse("9223372036854776"), math.MaxInt64},
		{v1.ResourceCPU, resource.MustParse("9223372036854775807"), math.MaxInt64},
		{v1.ResourceCPU, twice, math.MaxInt64},
		{v1.ResourceMemory, resource.MustParse("1Gi"), 1 << 30},
		{v1.ResourceMemory, resource.MustParse("0.5"), 1},
		{v1.ResourceMemory, resource.MustParse("9223372036854775807"), math.MaxInt64},
		{v1.ResourceMemory, resource.MustParse("1e30"), math.MaxInt64},
		{v1.ResourceMemory, twice, math.MaxInt64},
		{"example.com/gpu", resource.MustParse("-1"), -1},
		{"example.com/gpu", resource.MustParse("-1e30"), -math.MaxInt64},
	} {
		if got := Amount(c.name, c.quantity); got != c.want {
			t.Errorf("%s %s counts as %d, want %d", c.name, c.quantity.String(), got, c.want)
		}
	}
}
