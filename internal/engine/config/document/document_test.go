// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestAliasesAreCountedBeforeTheyAreExpanded(t *testing.T) {
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 40; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	for text, want := range map[string]int{
		"a: 1\n":                    4, // counts the document, the mapping, the key and the value
		"a: &x [1, 2]\nb: *x\n":     10,
		"a: &x [*x]\n":              math.MaxInt32,
		bomb:                        math.MaxInt32,
		"- a\n---\n- b\n":           6,
		"a: [":                      0,
		"b: &y {c: *z}\nd: &z *y":   0,
		"k: &k {<<: {a: 1}}\nl: *k": 14,
	} {
		if got := Expanded(text); got != want {
			t.Errorf("%.40q: %d values, expected %d", text, got, want)
		}
	}
}
