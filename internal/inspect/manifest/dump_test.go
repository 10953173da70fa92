// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"
)

// all abbreviates the output of kubectl get all -A -o yaml: bound pods, but no nodes.
const all = `apiVersion: v1
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: web-1, namespace: shop, uid: p1, resourceVersion: "1"}
  spec: {nodeName: node-7, containers: [{name: c, image: i}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: web-2, namespace: shop, uid: p2, resourceVersion: "1"}
  spec: {nodeName: node-7, containers: [{name: c, image: i}]}
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: shop}
  spec: {selector: {app: web}}
kind: List
`

func TestPodsOfNodesThatAreNotThereAreKept(t *testing.T) {
	set, err := Read([]string{"-"}, strings.NewReader(all), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Pods) != 2 || set.Elsewhere["node-7"] != 2 {
		t.Errorf("%d pods, elsewhere %v", len(set.Pods), set.Elsewhere)
	}
	if _, err := Read([]string{"-"}, strings.NewReader(all), Options{Strict: true}); err == nil || !strings.Contains(err.Error(), `<stdin>:6: spec.nodeName: "node-7"`) {
		t.Errorf("strictly: %v", err)
	}
}

// TestUTF16 verifies that all documents in UTF-16, as written by PowerShell's >, are read, with or
// without a byte order mark and in both byte orders.
func TestUTF16(t *testing.T) {
	text := "# Größe: 𝄞\r\napiVersion: v1\r\nkind: Node\r\nmetadata: {name: a}\r\n---\r\napiVersion: v1\r\nkind: Node\r\nmetadata: {name: b}\r\n"
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, mark := range []string{"\ufeff", ""} {
			var data []byte
			for _, unit := range utf16.Encode([]rune(mark + text)) {
				data = order.AppendUint16(data, unit)
			}
			set, err := Read([]string{"-"}, bytes.NewReader(data), Options{})
			if err != nil || len(set.Nodes) != 2 {
				t.Errorf("%v, mark %q: %v, %+v", order, mark, err, set)
			}
			if _, err = Read([]string{"-"}, bytes.NewReader(data[:len(data)-1]), Options{}); err == nil && len(data)%2 != 0 {
				t.Errorf("%v: half a letter is read", order)
			}
		}
	}
}

func TestErrorsPastTwentyAreCounted(t *testing.T) {
	var text strings.Builder
	for i := range 53 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Node\nmetadata: {name: n%d}\nspec: {taints: [{key: a, effect: No}]}\n", i)
	}
	_, err := Read([]string{"-"}, strings.NewReader(text.String()), Options{})
	var list Errors
	if !errors.As(err, &list) || len(list) != maxErrors+1 || list[maxErrors].Error() != "and 33 more errors" {
		t.Errorf("%v", err)
	}
}

// TestItemsOfOneLineAreNamed verifies that an item of a one-line List is identified by its name,
// since the line is ambiguous.
func TestItemsOfOneLineAreNamed(t *testing.T) {
	text := `{"kind":"List","apiVersion":"v1","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"good"}},` +
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad","namespace":"shop"},"spec":{"nodename":"x","containers":[{"name":"c","image":"i"}]}}]}`
	_, err := Read([]string{"-"}, strings.NewReader(text), Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "<stdin>:1: Pod shop/bad: spec.nodename: ") {
		t.Errorf("%v", err)
	}
}

// TestKindsThatAreAlmostRight verifies that a kind is rejected, as by an API server, if it differs
// from a known kind only in case or by a plural s, or if its group never had the kind.
func TestKindsThatAreAlmostRight(t *testing.T) {
	for _, c := range []struct{ apiVersion, kind, want string }{
		{"v1", "pod", `<stdin>:2: kind: "pod": did you mean Pod?`},
		{"v1", "Pods", `<stdin>:2: kind: "Pods": did you mean Pod?`},
		{"apps/v1", "deployment", `<stdin>:2: kind: "deployment": did you mean Deployment?`},
		{"v1", "list", `<stdin>:2: kind: "list": did you mean List?`},
		{"v1", "Deployment", `<stdin>:1: apiVersion: "v1": must be apps/v1 for a Deployment`},
		{"extensions/v1beta1", "ReplicaSet", `<stdin>:1: apiVersion: "extensions/v1beta1": must be apps/v1 for a ReplicaSet`},
		{"apps/v1", "Pod", `<stdin>:1: apiVersion: "apps/v1": must be v1 for a Pod`},
		{"v1", "ConfigMap", ""},
		{"serving.knative.dev/v1", "Service", ""},
		{"example.com/v1", "pod", ""},
		{"kueue.x-k8s.io/v1beta1", "Workload", ""},
	} {
		_, err := Read([]string{"-"}, strings.NewReader("apiVersion: "+c.apiVersion+"\nkind: "+c.kind+"\nmetadata: {name: a}\n"), Options{})
		if got := fmt.Sprint(err); got != c.want && (c.want != "" || err != nil) {
			t.Errorf("%s %s: %v, want %q", c.apiVersion, c.kind, err, c.want)
		}
	}
}

// TestInputThatIsNoManifest verifies that other kinds of input are identified in the error.
func TestInputThatIsNoManifest(t *testing.T) {
	for text, want := range map[string]string{
		"\x1f\x8b\x08\x00\x00": "-: is compressed: unpack it first, such as with gunzip",
		"a:\n\tb: c\n":         "<stdin>:2: not YAML or JSON: found character that cannot start any token: YAML is indented by spaces, not by tabs",
		"a: @b\n":              "<stdin>:1: not YAML or JSON: found character that cannot start any token: YAML is indented by spaces, not by tabs",
	} {
		if _, err := Read([]string{"-"}, strings.NewReader(text), Options{}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for path, want := range map[string]string{
		"":                      "a file name is empty",
		"https://x.test/a.yaml": "https://x.test/a.yaml: URLs are not read: download it first, or pipe it into -f -",
	} {
		if _, err := Read([]string{path}, nil, Options{}); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
}
