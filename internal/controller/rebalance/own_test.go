// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// TestPodsOfDefragmentAreNamedWithOrWithoutANamespace verifies that a pod of the goal defragment is
// in the given namespace, unless its name includes a namespace, as in Berth's output.
func TestPodsOfDefragmentAreNamedWithOrWithoutANamespace(t *testing.T) {
	for text, want := range map[string]string{
		"x": "ml/x", "pod/x": "ml/x", "shop/x": "shop/x", "pod/shop/x": "shop/x", "": "", "/x": "", "shop/": "", "a/b/c": "", "pod/": "",
	} {
		policy, err := rebalance.ReadGoals([]string{"defragment=" + text}, "ml")
		switch {
		case (err != nil) != (want == ""):
			t.Errorf("%q: %v", text, err)
		case err == nil:
			if pod := policy.Goals[0].Defragment.Pods[0]; pod != (types.NamespacedName{Namespace: want[:len(want)-2], Name: "x"}) {
				t.Errorf("%q is %s, want %s", text, pod, want)
			}
		}
	}
}
