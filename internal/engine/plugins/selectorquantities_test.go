// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

// TestQuantitiesOfSelectorsAreBounded verifies the results, and the total duration, of selectors
// that would each occupy a processor for seconds to minutes if quantities could have any exponent,
// literal or computed.
func TestQuantitiesOfSelectorsAreBounded(t *testing.T) {
	cache := newSelectorCache(mostExpressions)
	device := cel.Device{Driver: "gpu.example.com", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"zeros": {StringValue: new("60000000")}},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}}
	began := time.Now()
	for expression, want := range map[string]bool{
		`quantity("1e60000000").isGreaterThan(quantity("1"))`:                                                                             true,
		`quantity("-1e60000000").isLessThan(device.capacity["gpu.example.com"].memory)`:                                                   true,
		`device.capacity["gpu.example.com"].memory.isLessThan(quantity("1e" + device.attributes["gpu.example.com"].zeros))`:               true,
		`["1e6", "0000000"].map(s, s).join("").lowerAscii() != "" && quantity(["1e6", "0000000"].join("")).compareTo(quantity("1")) == 1`: true,
		`sign(quantity("12345678901234567890e60000000").sub(quantity("1"))) == 1`:                                                         true,
		`quantity("1e-2000000000") == quantity("1n")`:                                                                                     true,
		`quantity("0e2000000000").isInteger()`:                                                                                            true,
		`isQuantity("12345678901234567890e60000000") && !isQuantity("1e60000000x")`:                                                       true,
		`quantity("1e60000000").add(1) == quantity("1.5")`:                                                                                false,
		// Ordinary quantities are exact.
		`quantity("922337203685477580").asInteger() == 922337203685477580 && quantity("1.5Gi").sub(quantity("512Mi")) == quantity("1Gi")`: true,
		`quantity("1e30").isLessThan(quantity("1000000000000000000000000000001")) && quantity("0.1n") == quantity("1n")`:                  true,
	} {
		compiled := cache.GetOrCompile(expression)
		if compiled.Error != nil {
			t.Errorf("%s: %v", expression, compiled.Error)
			continue
		}
		if matches, _, err := compiled.DeviceMatches(context.Background(), device); err != nil || matches != want {
			t.Errorf("%s is %v (%v), want %v", expression, matches, err, want)
		}
		// Another plugin's allocator has a separate compiler.
		compiled = cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true}).CompileCELExpression(expression, cel.Options{})
		if matches, _, err := compiled.DeviceMatches(context.Background(), device); err != nil || matches != want {
			t.Errorf("with other features, %s is %v (%v), want %v", expression, matches, err, want)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("all expressions together took %v", took)
	}
}
