// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// TestAliasesCostNoMoreThanTheDocumentIsLong verifies that a document's length bounds its expansion
// by aliases and merge keys. Without the bound, the cost of each of these documents would be a
// product of the lengths of its parts.
func TestAliasesCostNoMoreThanTheDocumentIsLong(t *testing.T) {
	keys := func(n int, prefix string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%s%d: v, ", prefix, i)
		}
		return strings.TrimSuffix(b.String(), ", ")
	}
	const head = "apiVersion: v1\nkind: Node\nmetadata: {name: a, labels: &l {%s}"
	for _, c := range []struct{ name, text string }{
		{"one mapping merged again and again, which adds nothing", fmt.Sprintf(head, keys(4000, "k")) + ", annotations: {<<: [" + strings.Repeat("*l, ", 9999) + "*l]}}\n"},
		{"a sequence of aliases of a long mapping", fmt.Sprintf(head, keys(4000, "k")) + "}\nspec: {taints: [" + strings.Repeat("*l, ", 999) + "*l]}\n"},
		{"empty mappings merged again and again", "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: [&e {}, &l [" + strings.Repeat("*e, ", 999) + "*e], " + strings.Repeat("{<<: *l}, ", 999) + "{}]\n"},
		{"a laugh", "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: [&a [x, x, x, x, x, x, x, x], &b [*a, *a, *a, *a, *a, *a, *a, *a], &c [*b, *b, *b, *b, *b, *b, *b, *b], " +
			"&d [*c, *c, *c, *c, *c, *c, *c, *c], &e [*d, *d, *d, *d, *d, *d, *d, *d], &f [*e, *e, *e, *e, *e, *e, *e, *e]]\n"},
	} {
		var tr tree
		fault := parseLibrary(&tr, c.text, 1)
		if fault == nil || !strings.Contains(fault.text, "repeat too much") {
			t.Errorf("%s: %+v, %d values", c.name, fault, len(tr.nodes))
		}
		if most := mostRepeated(c.text) + len(c.text); len(tr.nodes) > most {
			t.Errorf("%s: %d bytes became %d values", c.name, len(c.text), len(tr.nodes))
		}
	}
}

func TestATemplateMayBeShared(t *testing.T) {
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - &c {name: c0, image: i, env: &e [{name: a, value: b}, {name: c, value: d}, {name: e, value: f}]}\n"
	for i := range 200 {
		text += fmt.Sprintf("  - {<<: *c, name: c%d, env: *e}\n", i+1)
	}
	var tr tree
	if fault := parseLibrary(&tr, text, 1); fault != nil {
		t.Fatalf("%+v", fault)
	}
	containers := tr.childOf(tr.childOf(0, "spec"), "containers")
	last := tr.nodes[containers].first
	for tr.nodes[last].next != 0 {
		last = tr.nodes[last].next
	}
	if name, image := tr.textOf(last, "name"), tr.textOf(last, "image"); name != "c200" || image != "i" {
		t.Errorf("the last container is %q of %q", name, image)
	}
}
