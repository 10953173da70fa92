// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func printed(t *tree) string {
	if len(t.nodes) == 0 {
		return "empty"
	}
	var out strings.Builder
	var walk func(n int32, depth int)
	walk = func(n int32, depth int) {
		node := &t.nodes[n]
		fmt.Fprintf(&out, "%s%q line %d", strings.Repeat("  ", depth), node.key, node.line)
		switch node.kind {
		case scalarNode:
			fmt.Fprintf(&out, " %q", node.text)
			if node.quoted {
				out.WriteString(" quoted")
			}
		case mappingNode:
			out.WriteString(" mapping")
		case sequenceNode:
			out.WriteString(" sequence")
		}
		out.WriteByte('\n')
		for c := node.first; c != 0; c = t.nodes[c].next {
			walk(c, depth+1)
		}
	}
	walk(0, 0)
	return out.String()
}

var seeds = []string{
	"a: 1\nb:\n  c: d\n  e: [f, 'g', \"h\"]\n", "- a\n- b: c\n  d: e\n-\n  f: g\n- - x\n  - y\n",
	"spec:\n  taints:\n  - key: k\n    effect: NoSchedule\n  x: {a: b, c: {d: e}}\n", "a: |\n  x\n\n   y\nb: |-\n  z\n",
	"a: b # c\n# d\ne: 'it''s'\nf: \"q\\\"\\n\"\n", "a: http://x:80/y\nb: a:b\nc: -1\nd: - 1\n", "a:\n- b\nc:\n  - d\n",
	"a: b\n  c\n", "? a\n: b\n", "&x a: *x\n", "a: {b: c}x\n", "a: [b, c:d, {e: f}]\n", "'a': b\n\"c\": d\n", "a : b\n", "a:\tb\n",
	"---\na: b\n", "a: b\n...\n", "a: !!str 1\n", "a: >\n  x\n", "{\"a\": [1, true, null, \"\\u00e4\"]}\n", "a: \"b\n  c\"\n", "- a: b\n - c\n",
	"a: b\r\nc: d\r\n", "a: [\n", "a: {}\nb: []\n", "a:\n    - b\n    -   c: d\n        e: f\n", "-1: a\n", "- -\n", "a: ''\n", "a: '\n'\n", "#\na: #b\n",
	"a: {b: 'c'd}\n", "a: [\"b\"c]\n", "a: [- b]\n", "a: [-b, - ]\n", "a: {b}\n", "a: {'b':c}\n", "a: {\"b\":c}\n", "a: [a b, c#d, e #f]\n",
}

// FuzzBlock verifies that the library agrees with the fast parser.
func FuzzBlock(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var fast, slow tree
		if !parseBlock(&fast, text, 1) {
			return
		}
		if err := parseLibrary(&slow, text, 1); err != nil {
			t.Fatalf("read as\n%s\nthe library refuses it: %v\n%q", printed(&fast), err, text)
		}
		if a, b := printed(&fast), printed(&slow); a != b {
			t.Fatalf("read as\n%s\nthe library reads\n%s\n%q", a, b, text)
		}
	})
}

// FuzzFlow verifies that parseFlow and encoding/json agree on JSON.
func FuzzFlow(f *testing.F) {
	f.Add("{\"a\": [1, true, null, \"\\u00e4\"]}\n")
	f.Add("[{\"a\":{}},[],\"x\"]")
	f.Fuzz(func(t *testing.T, text string) {
		var fast tree
		if !json.Valid([]byte(text)) || !parseFlow(&fast, text, 1) || len(fast.nodes) == 0 {
			return
		}
		want, _ := json.Marshal(parsedJSON(t, text))
		got, _ := json.Marshal(value(&fast, 0))
		if string(want) != string(got) {
			t.Fatalf("%q\nread as %s\nJSON is %s", text, got, want)
		}
	})
}

func parsedJSON(t *testing.T, text string) any {
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func value(t *tree, n int32) any {
	node := &t.nodes[n]
	switch node.kind {
	case mappingNode:
		m := map[string]any{}
		for c := node.first; c != 0; c = t.nodes[c].next {
			m[t.nodes[c].key] = value(t, c)
		}
		return m
	case sequenceNode:
		list := []any{}
		for c := node.first; c != 0; c = t.nodes[c].next {
			list = append(list, value(t, c))
		}
		return list
	}
	if node.quoted {
		return node.text
	}
	switch resolveType(node.text) {
	case nullScalar:
		return nil
	case boolScalar:
		return parseBool(node.text)
	case intScalar, floatScalar:
		return json.Number(node.text)
	}
	return node.text
}

// FuzzResolve verifies that Berth and kubectl agree on the types of plain scalars.
func FuzzResolve(f *testing.F) {
	for _, s := range []string{"1", "-1", "+1", "01", "0x1f", "0b11", "-0b1", "0o7", "1_000", "1.5", ".5", "1.", "1e3", "1e", "e1", "0.1.2", "10.0.0.1",
		"2006-01-02", "2006-01-02T00:00:00Z", "100m", "1Gi", "yes", "y", "on", "Off", "NULL", "~", ".inf", "-.INF", ".nan", "nan", "0x", "-", "--1", "1-2",
		"18446744073709551615", "9223372036854775808", "1e400", "0x1p4", "_1", "1_", "0_7", "08", "true", "tRUE", "1:30", "+.5", "0e0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if v, ok := parsePlain(text); !ok || v != text || strings.ContainsAny(text, "\n\r") || strings.TrimSpace(text) != text {
			return
		}
		for _, r := range text {
			if r < ' ' || r > '~' {
				return
			}
		}
		out, err := yaml.YAMLToJSON([]byte("a: " + text + "\n"))
		if err != nil {
			return
		}
		var got struct{ A any }
		if err := json.Unmarshal(out, &got); err != nil {
			return
		}
		want := stringScalar
		switch got.A.(type) {
		case nil:
			want = nullScalar
		case bool:
			want = boolScalar
		case float64:
			want = floatScalar
		}
		have := resolveType(text)
		if have == intScalar {
			have = floatScalar
		}
		if have != want {
			t.Fatalf("%q is %v here and %v to kubectl (%s)", text, have, want, out)
		}
		if want == boolScalar && parseBool(text) != got.A.(bool) {
			t.Fatalf("%q is %v here and %v to kubectl", text, parseBool(text), got.A)
		}
		if want == floatScalar {
			var f float64
			if err := json.Unmarshal([]byte(formatNumber(text)), &f); err != nil || f != got.A.(float64) {
				t.Fatalf("%q is %s here and %s to kubectl", text, formatNumber(text), out)
			}
		}
	})
}
