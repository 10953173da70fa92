// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// numbers returns a literal list of n numbers.
func numbers(n int) string { return "[" + strings.Repeat("1,", n-1) + "1]" }

// TestExpressionsAreNeverEvaluatedForMinutes verifies that searches, explanations and scores never
// evaluate selectors that would each take minutes or gigabytes. The API server accepts some of
// these selectors and refuses the rest because of its estimate, but manifests may contain any of
// them.
func TestExpressionsAreNeverEvaluatedForMinutes(t *testing.T) {
	a := func(n int) string { return `"` + strings.Repeat("a", n) + `"` }
	for name, c := range map[string]struct {
		expression string
		accepted   bool // whether the API server accepts the expression
	}{
		"regular expression":  {numbers(200) + `.exists(i, ` + a(8000) + `.matches("((a?){30}){30}b"))`, true},
		"computed expression": {numbers(200) + `.exists(i, ` + a(8000) + `.matches("((a?){30}){30}" + "b"))`, true},
		"find":                {numbers(200) + `.all(i, ` + a(8000) + `.find("((a?){30}){30}b") == "")`, true},
		"search":              {`[` + a(3000) + `.replace("a", ` + a(800) + `)].all(s, s.indexOf(` + a(4000) + ` + "b") < 0)`, true},
		"replacement":         {a(2000) + `.replace("", ` + a(2000) + `).replace("", ` + a(2000) + `).size() > 3`, true},
		"digits":              {`"` + strings.Repeat("%.999999f", 700) + `".format([` + strings.Repeat("1.5,", 699) + `1.5]).size() > 3`, true},
		"comprehensions":      {numbers(1000) + `.all(i, ` + numbers(1000) + `.all(j, ` + numbers(1000) + `.all(k, i + j + k > 0)))`, false},
		"one call":            {`lists.range(100000).distinct().size() > 3 || ` + a(2000) + ` == ""`, false},
		"quantities": {numbers(1000) + `.all(i, ` + numbers(1000) + `.all(j, ` + numbers(1000) +
			`.all(k, quantity("1e2000000000").isGreaterThan(quantity("1e1999999999")))))`, false},
	} {
		t.Run(name, func(t *testing.T) {
			compiled := cel.GetCompiler(expressionFeatures).CompileCELExpression(c.expression, cel.Options{})
			accepted := len(c.expression) <= resourcev1.CELSelectorExpressionMaxLength && compiled.MaxCost <= resourcev1.CELSelectorExpressionMaxCost
			if compiled.Error != nil || accepted != c.accepted {
				t.Fatalf("an estimate of %d (%v), want it accepted: %v", compiled.MaxCost, compiled.Error, c.accepted)
			}
			began := time.Now()
			claim := claimOfOne("c")
			claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: c.expression}}}
			if said := saidOf(t, claim); said != "finding devices takes too long" {
				t.Errorf("the search: %q", said)
			}
			class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
			class.Spec.Selectors = claim.Spec.Devices.Requests[0].Exactly.Selectors
			if _, err := classSelects(class, "gpu.example.com", &resourcev1.Device{Name: "d"}); err == nil {
				t.Error("the score evaluates it")
			}
			tally := deviceTally{a: &attempt{c: cluster.New(), expressions: newExpressionSet(nil)}}
			tally.matches(&talliedRequest{selectors: class.Spec.Selectors}, reachedDevice{Device: &resourcev1.Device{}})
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("all took %v", took)
			}
		})
	}
}

// TestOrdinarySelectorsKeepTheirCost verifies that the cost of selectors used in practice is the
// API server's estimate, even if their worst case is some hundred times the estimate.
func TestOrdinarySelectorsKeepTheirCost(t *testing.T) {
	for _, expression := range []string{
		`device.attributes["gpu.example.com"].model.matches("^NVIDIA-(A100|H100)-[A-Z0-9]{1,10}$")`,
		`device.attributes["gpu.example.com"].model.lowerAscii().matches("^a100.{0,50}$") && device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0`,
		`device.attributes["gpu.example.com"].model.replace("-", "").indexOf("A100") >= 0`,
		`"%s-%d".format([device.driver, 1]) == "gpu.example.com-1"`,
		`device.attributes.all(k, device.attributes.all(l, device.attributes.all(m, k + l != m && k != "x")))`,
	} {
		compiled := cel.GetCompiler(expressionFeatures).CompileCELExpression(expression, cel.Options{})
		if compiled.Error != nil {
			t.Fatal(compiled.Error)
		}
		want := costOfExpression + int64(compiled.MaxCost)/expressionCostsEach
		if cost := findCost(expression); cost.most != want || cost.compiled == nil && want > heavyExpression {
			t.Errorf("%s: cost %d, want %d", expression, cost.most, want)
		}
	}
}

// TestLongExpressionsAreNotCompiled verifies that expressions beyond the API server's limit on
// their length, possible in a manifest, are refused without compiling them. An expression of ten
// times the limit would take seconds to compile.
func TestLongExpressionsAreNotCompiled(t *testing.T) {
	claim, sets := claimOfOne("c"), expressionSets{}
	for length, want := range map[int]bool{resourcev1.CELSelectorExpressionMaxLength: false, resourcev1.CELSelectorExpressionMaxLength + 1: true} {
		expression := &resourcev1.CELDeviceSelector{Expression: strings.Repeat(" ", length-4) + "true"}
		claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: expression}}
		if _, long := sets.setOf(cluster.New(), []*resourcev1.ResourceClaim{claim}); long != want {
			t.Errorf("%d bytes are too long: %v", length, long)
		}
	}
}
