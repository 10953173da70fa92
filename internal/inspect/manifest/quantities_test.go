// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestHugeQuantitiesAreReadAtOnce verifies that a manifest with quantities of any exponent or
// length is read, and that its quantities are cheap to compute with.
func TestHugeQuantitiesAreReadAtOnce(t *testing.T) {
	began := time.Now()
	for text, want := range map[string]string{"1e60000000": "1e270", `"1e-2000000000"`: "1e-9", `"12345678901234567890e60000000"`: "1e270",
		"0e2000000000": "0", strings.Repeat("9", 500_000): "1e270", "1.5Gi": "1536Mi"} {
		var node v1.Node
		if err := Decode("node.yaml", []byte("status: {allocatable: {memory: "+text+"}}"), &node); err != nil {
			t.Errorf("%.30s: %v", text, err)
			continue
		}
		got := node.Status.Allocatable.Memory()
		got.Cmp(*node.Status.Allocatable.Cpu())
		if got.String() != want {
			t.Errorf("%.30s is read as %.30s, want %s", text, got.String(), want)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("reading took %v", took)
	}
}
