// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestAPanicCostsItsPodTheExplanation verifies that a panic becomes the explanation of its pod.
func TestAPanicCostsItsPodTheExplanation(t *testing.T) {
	e := &explainer{object: &v1.Pod{}, out: &Explanation{}} // without a world
	if err := e.explainGuarded(simulate.Found{Object: e.object}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(e.out.Summary, "Berth failed to explain this pod (panic: ") || e.out.State != Pending {
		t.Errorf("explained as %+v", e.out)
	}
}
