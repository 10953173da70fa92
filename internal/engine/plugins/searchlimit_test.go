// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// saidOf returns the filter's verdict on a node with four devices for a pod with the claim.
func saidOf(t *testing.T, claim *resourcev1.ResourceClaim) string {
	t.Helper()
	c, d := cluster.New(), newDynamicResources(t)
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	c.ResourceSlices.Set(sliceOfUnlike("a", 4))
	c.ResourceClaims.Set(claim)
	p := waiting(t, c, fmt.Sprintf("kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: r, resourceClaimName: %s}]}", claim.Name))
	return answers(c, d, p, 1)[0]
}

// TestAnExpressionThatDoesNotCompileIsNamed requires a message that names the fault. Such an
// expression is never evaluated, so the search cannot be slow.
func TestAnExpressionThatDoesNotCompileIsNamed(t *testing.T) {
	claim := claimOfOne("c")
	request := claim.Spec.Devices.Requests[0].Exactly
	for _, expression := range []string{"true", "device.nonsense"} {
		request.Selectors = append(request.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: expression}})
	}
	if text := saidOf(t, claim); !strings.Contains(text, "undefined field 'nonsense'") {
		t.Errorf("got %q", text)
	}
}

// TestCountsThatNoIntHoldsAreRefused verifies that counts beyond the range of an int are refused
// with the same error as all counts beyond the capacity of a claim. The API accepts any number
// above zero for each request.
func TestCountsThatNoIntHoldsAreRefused(t *testing.T) {
	requests := func(counts ...int64) *resourcev1.ResourceClaim {
		claim := claimOfOne("c")
		one := claim.Spec.Devices.Requests[0]
		claim.Spec.Devices.Requests = nil
		for i, count := range counts {
			request := *one.DeepCopy()
			request.Name, request.Exactly.Count = fmt.Sprint("r", i), count
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, request)
		}
		return claim
	}
	alternatives := requests(math.MaxInt64)
	for range 2 {
		alternatives.Spec.Devices.Requests = append(alternatives.Spec.Devices.Requests, resourcev1.DeviceRequest{
			Name: fmt.Sprint("alternatives-", len(alternatives.Spec.Devices.Requests)),
			FirstAvailable: []resourcev1.DeviceSubRequest{
				{Name: "many", DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: math.MaxInt64},
				{Name: "few", DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 2},
			},
		})
	}
	all := requests(math.MaxInt64, 1)
	all.Spec.Devices.Requests[1].Exactly.AllocationMode, all.Spec.Devices.Requests[1].Exactly.Count = resourcev1.DeviceAllocationModeAll, 0
	for name, claim := range map[string]*resourcev1.ResourceClaim{
		"one":          requests(33),
		"the largest":  requests(math.MaxInt64),
		"two":          requests(math.MaxInt64/2+1, math.MaxInt64/2+1),
		"more":         requests(math.MaxInt64, math.MaxInt64, 3),
		"alternatives": alternatives,
		"all":          all,
	} {
		t.Run(name, func(t *testing.T) {
			if text := saidOf(t, claim); !strings.Contains(text, "exceeds the claim limit of 32") {
				t.Errorf("got %q", text)
			}
		})
	}
}

// TestWhatAnExpressionCostsDependsOnTheDevice verifies that the cost of a heavy expression depends
// on the device. The API server's estimate for the expression exceeds the limit of an attempt,
// because the estimate assumes the largest accepted device. Only a device of this size may exceed
// the limit.
func TestWhatAnExpressionCostsDependsOnTheDevice(t *testing.T) {
	const expression = `device.attributes.all(k, device.attributes.all(l, device.attributes.all(m, k + l != m && k != "x")))`
	compiled := cel.GetCompiler(expressionFeatures).CompileCELExpression(expression, cel.Options{})
	if err := compiled.Error; err != nil {
		t.Fatal(err)
	}
	if most := uint64(longestSearch/searchCost) * expressionCostsEach; compiled.MaxCost < most || compiled.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
		t.Fatalf("the estimate is %d: the API server has to accept the expression, and it has to be too much for an attempt", compiled.MaxCost)
	}
	for _, shared := range []bool{false, true} {
		for attributes, want := range map[int]string{1: "ok", 30: "finding devices takes too long"} {
			c, d := cluster.New(), newDynamicResources(t)
			c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
			slice := sliceOfUnlike("a", 4)
			if shared {
				slice.Spec.NodeName, slice.Spec.AllNodes = nil, new(true)
			}
			for i := range slice.Spec.Devices {
				for j := range attributes {
					name := resourcev1.QualifiedName(fmt.Sprintf("domain-with-a-name-as-long-as-they-are-%d.example.com/a", j))
					slice.Spec.Devices[i].Attributes[name] = resourcev1.DeviceAttribute{IntValue: new(int64(1))}
				}
			}
			c.ResourceSlices.Set(slice)
			claim := claimOfOne("c")
			claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
			c.ResourceClaims.Set(claim)
			for _, node := range []string{"a", "b"} {
				c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
			}
			p := waiting(t, c, "kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: r, resourceClaimName: c}]}")
			if lines := answers(c, d, p, 2); lines[0] != want {
				t.Errorf("%d attributes, shared by all nodes: %v: got %q, want %q", attributes, shared, lines, want)
			}
		}
	}
}

// TestAnExpressionThatTheAPIServerRefusesIsNotEvaluated verifies that a selector with an estimate
// above the API server's limit, possible in a manifest, is never evaluated: the evaluation would
// take half a minute, and CEL compares its cost with the limit only afterwards.
func TestAnExpressionThatTheAPIServerRefusesIsNotEvaluated(t *testing.T) {
	c, d := cluster.New(), newDynamicResources(t)
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	c.ResourceSlices.Set(sliceOfUnlike("a", 4))
	claim := claimOfOne("c")
	claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
		Expression: `lists.range(100000).distinct().size() > 3`}}}
	c.ResourceClaims.Set(claim)
	p := waiting(t, c, "kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: r, resourceClaimName: c}]}")
	began := time.Now()
	if lines := answers(c, d, p, 1); lines[0] != "finding devices takes too long" {
		t.Errorf("got %q", lines)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the search took %v", took)
	}
}

// TestFindingOutWhatAnExpressionCostsIsNoSearchOfItsOwn verifies that an expression is not measured
// on each of very many devices, which would exceed the limit. Measuring must stop after the first
// device.
func TestFindingOutWhatAnExpressionCostsIsNoSearchOfItsOwn(t *testing.T) {
	const expression = `device.attributes.all(k, device.attributes.all(l, true))`
	c, d := cluster.New(), newDynamicResources(t)
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	slice := sliceOfUnlike("a", 128)
	for i := range slice.Spec.Devices {
		for j := range 31 {
			slice.Spec.Devices[i].Attributes[resourcev1.QualifiedName(fmt.Sprintf("%d.example.com/a", j))] = resourcev1.DeviceAttribute{IntValue: new(int64(1))}
		}
	}
	c.ResourceSlices.Set(slice)
	claim := claimOfOne("c")
	claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
	c.ResourceClaims.Set(claim)
	p := waiting(t, c, "kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: r, resourceClaimName: c}]}")
	if lines := answers(c, d, p, 1); lines[0] != "ok" {
		t.Errorf("got %q", lines)
	}
}
