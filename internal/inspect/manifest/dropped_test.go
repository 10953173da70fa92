// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"
	"time"
)

// TestNothingIsDropped reads YAML of which a part must not be dropped silently.
func TestNothingIsDropped(t *testing.T) {
	for name, text := range map[string]string{
		"a second document on the line of its separator": "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n--- {apiVersion: v1, kind: Namespace, metadata: {name: b}}\n",
		"a merge within a merged mapping": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - &a\n    name: a\n    image: i\n    resources: {requests: {cpu: 3}}\n" +
			"  - &b\n    <<: *a\n    name: b\n  - <<: *b\n    name: c\n",
	} {
		set, err := Read([]string{"-"}, strings.NewReader(text), Options{Lenient: true})
		t.Log(err)
		if err == nil && len(set.Namespaces) < 2 && (len(set.Pods) == 0 || set.Pods[0].Spec.Containers[2].Resources.Requests.Cpu().Value() != 3) {
			t.Errorf("%s is dropped", name)
		}
	}
}

// TestFaultyManifestsAreReadInProportionalTime reads 64 KiB each.
func TestFaultyManifestsAreReadInProportionalTime(t *testing.T) {
	for name, text := range map[string]string{
		"many faults":              "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n" + strings.Repeat(" x:\n", 16_000),
		"the items of a long head": `{"x": "` + strings.Repeat("a", 32_000) + `", "items": [` + strings.Repeat("{},", 10_000) + "{}]}",
	} {
		began := time.Now()
		if _, err := Read([]string{"-"}, strings.NewReader(text), Options{Lenient: true, Workers: 1}); err == nil || time.Since(began) > time.Second {
			t.Errorf("%s: %s, %v", name, time.Since(began), err == nil)
		}
	}
}
