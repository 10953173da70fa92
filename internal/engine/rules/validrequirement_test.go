// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// TestValidRequirementsAreThoseOfTheLibrary verifies that the results for unusual keys and values
// equal the library's results.
func TestValidRequirementsAreThoseOfTheLibrary(t *testing.T) {
	pieces := []string{"a", "Z", "0", "-", "--", ".", "..", "_", "/", "é", " ", "a.b", strings.Repeat("x", 62), strings.Repeat("y", 63), strings.Repeat("a.", 120)}
	operators := []selection.Operator{selection.In, selection.NotIn, selection.Exists, selection.DoesNotExist, selection.GreaterThan, selection.LessThan, "odd"}
	rng := rand.New(rand.NewPCG(1, 1))
	text := func() (all string) {
		for range rng.IntN(5) {
			all += pieces[rng.IntN(len(pieces))]
		}
		return all
	}
	valid := 0
	for range 200_000 {
		key, operator, values := text(), operators[rng.IntN(len(operators))], []string(nil)
		for range rng.IntN(3) {
			values = append(values, text())
		}
		_, err := labels.NewRequirement(key, operator, values)
		if got := ValidRequirement(key, operator, values); got != (err == nil) {
			t.Fatalf("%q %s %q: %v, and the library says %v", key, operator, values, got, err)
		}
		if err == nil {
			valid++
		}
	}
	if valid < 1000 {
		t.Errorf("only %d were valid", valid)
	}
}
